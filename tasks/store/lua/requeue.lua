-- Put a running job back in the queue: retry, defer and release differ only in their arguments.
-- A: job, run, from (set of statuses), status (to enter), reason ('' none), wait_ms, retry_at (1: say
--    when), attempts (-1: this one is not counted), waited_ms (spent on closed lanes), error (JSON)
-- returns: ok or lost (the run is not the job's any more)
local job = load(A.job)
if not holds(job, A) or not among(A.from, job.status) then return {'lost'} end
local due = now + A.wait_ms
close_open_calls(job, now)
redis.call('HDEL', job.key, 'worker', 'claim')
redis.call('HINCRBY', job.key, 'attempts', A.attempts)
redis.call('HINCRBY', job.key, 'waited', A.waited_ms)
redis.call('HSET', job.key, 'error', A.error, 'retry_at', A.retry_at == '1' and iso(due) or 'null')
redis.call('ZADD', K('waiting'), due, job.id)
redis.call('ZADD', job.queue, due, job.entry)
watch_deadline(job)
redis.call('PUBLISH', K('wake_channel'), job.kind)
enter(job, A.status, A.reason ~= '' and A.reason or nil)
return {'ok'}
