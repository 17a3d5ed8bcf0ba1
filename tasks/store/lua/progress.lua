-- Tell the progress of a running job.
-- A: job, run, done, total, note, plan (fragments; plan '' none), reused (steps taken from the store since the last time)
-- returns: ok or lost
local job = load(A.job)
if not holds(job, A) then return {'lost'} end
redis.call('HINCRBY', job.key, 'reused', A.reused)
count(A.reused, 'reused\n' .. job.kind)
advance(job, A)
return {'ok'}
