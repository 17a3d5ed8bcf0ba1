-- Put a running job back in the queue: retry, defer and release differ only in their arguments.
-- A: job, run, from (set of statuses), status (to enter), reason ('' none), wait_ms, retry_at (1: say
--    when), attempts (-1: this one is not counted), deferred (1: it waits for the model), lane (the
--    model that has no place for it, '' none), error (JSON)
-- returns: ok or lost (the run is not the job's any more)
local job = load(A.job)
if not holds(job, A) or not among(A.from, job.status) then return {'lost'} end
local due = now + A.wait_ms
close_open_calls(job, now)
redis.call('HDEL', job.key, 'worker', 'lane')
redis.call('HINCRBY', job.key, 'attempts', A.attempts)
make_room(job, now)
job.worker = false
if A.deferred == '1' then
  job.deferred = now
  redis.call('HSET', job.key, 'deferred', now)
end
if A.lane ~= '' then
  redis.call('HSET', job.key, 'lane', A.lane)
  due = wait_for_lane(job, A.lane, now) or now
end
redis.call('HSET', job.key, 'error', A.error, 'retry_at', A.retry_at == '1' and iso(due) or 'null')
redis.call('ZADD', K('waiting'), due, job.id)
redis.call('ZADD', job.queue, due, job.entry)
watch_deadline(job)
redis.call('PUBLISH', K('wake_channel'), job.kind)
enter(job, A.status, A.reason ~= '' and A.reason or nil)
return {'ok'}
