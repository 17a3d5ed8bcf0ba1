-- Log and publish a piece of streamed text. A repeat by nature: deltas of a run are numbered.
-- Many of them a second: it reads of the job only what it needs.
-- A: job, run, number (1, 2, 3 … within the run), data (JSON)
-- returns: ok or lost
local key = K('job', A.job)
local v = redis.call('HMGET', key, 'run', 'status', 'seq', 'deltas')
if v[1] ~= A.run or v[2] ~= RUNNING then return {'lost'} end
local was_run, was = string.match(v[4] or '', '(%d+):(%d+)')
if was_run == A.run and tonumber(was) >= tonumber(A.number) then return {'ok'} end
local job = {id = A.job, key = key, seq = v[3] + 1}
redis.call('HSET', key, 'deltas', A.run .. ':' .. A.number, 'seq', job.seq)
emit(job, 'delta', A.data, false)
return {'ok'}
