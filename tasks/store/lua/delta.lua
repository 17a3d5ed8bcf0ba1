-- Log and publish a piece of streamed text. A repeat by nature: deltas of a run are numbered.
-- A: job, run, number (1, 2, 3 … within the run), data (JSON)
-- returns: ok or lost
local job = load(A.job)
if not holds(job, A) then return {'lost'} end
local was_run, was = string.match(redis.call('HGET', job.key, 'deltas') or '', '(%d+):(%d+)')
if was_run == A.run and tonumber(was) >= tonumber(A.number) then return {'ok'} end
redis.call('HSET', job.key, 'deltas', A.run .. ':' .. A.number)
emit(job, 'delta', A.data, false)
return {'ok'}
