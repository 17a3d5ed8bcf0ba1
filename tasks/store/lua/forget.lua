-- Drop a stored step whose request a person changed, so that it is computed anew. A repeat by nature.
-- A: job, run, step, hash (of what is stored: an answer that came meanwhile stays)
-- returns: ok or lost
local job = load(A.job)
if not holds(job, A) then return {'lost'} end
local steps = K('steps', job.id)
local kept = redis.call('HGET', steps, A.step)
if kept and string.sub(kept, 1, #A.hash + 1) == A.hash .. '\n' then redis.call('HDEL', steps, A.step) end
return {'ok'}
