-- Write the ledger line of a call before it is sent. A repeat by nature: the line has the caller's id.
-- A: job, run, call, step, model, attempt, hash (of the request), memo (1: an earlier job's answer will do)
-- returns: word, value; begun and the number of its idempotency key, stored and the step's result
--    (as kept: hash, line feed, JSON), wait and the ms after which to look again, or lost
local job = load(A.job)
if not holds(job, A) then return {'lost', ''} end
local ledger, field = K('ledger', job.id), 'c:' .. A.call
local number = redis.call('HGET', ledger, 'n:' .. A.step) or '0'
if redis.call('HEXISTS', ledger, field) == 1 then return {'begun', number} end
local stored = redis.call('HGET', K('steps', job.id), A.step)
if stored then return {'stored', stored} end
local known = A.memo == '1' and recall(job.user, A.hash)
if known then
  redis.call('HSET', K('steps', job.id), A.step, known)
  redis.call('HINCRBY', job.key, 'reused', 1)
  count(1, 'reused\n' .. job.kind)
  return {'stored', known}
end
local at = wait_for_lane(job, A.model, now)
if at then
  -- The run may have other calls open; should it have none, `requeue` puts its job in the line again.
  leave_line(job, A.model)
  return {'wait', tostring(math.ceil(at - now))}
end
take_place(job, A.model, A.call, now)
redis.call('HSET', ledger, field, cjson.encode({
  call = A.call, no = redis.call('HINCRBY', ledger, 'count', 1), step = A.step, attempt = tonumber(A.attempt),
  run = tonumber(A.run), model = A.model, hash = A.hash, number = tonumber(number), outcome = 'open',
  started = math.floor(now)}))
redis.call('HINCRBY', job.key, 'open', 1)
redis.call('HSET', job.key, 'model', A.model)
return {'begun', number}
