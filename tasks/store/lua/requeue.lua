-- Put a running job back in the queue: retry, defer and release differ only in their arguments.
-- A: job, run, from (set of statuses), status (to enter), reason ('' none), wait_ms, retry_at (1: say
--    when), attempts (-1: this one is not counted), deferred (1: it waits for the model), lane (the
--    model that has no place for it, '' none), error (JSON)
-- returns: ok or lost (the run is not the job's any more)
local job = load(A.job)
if not holds(job, A) or not among(A.from, job.status) then return {'lost'} end
local due = now + A.wait_ms
local fields = {'attempts', job.attempts + A.attempts, 'error', A.error}
close_open_calls(job, now)
if job.lane then redis.call('HDEL', job.key, 'lane') end
make_room(job, now)
job.worker = false
if A.deferred == '1' then
  job.deferred = now
  table.insert(fields, 'deferred')
  table.insert(fields, now)
end
if A.lane ~= '' then
  table.insert(fields, 'lane')
  table.insert(fields, A.lane)
  due = wait_for_lane(job, A.lane, now) or now
end
table.insert(fields, 'retry_at')
table.insert(fields, A.retry_at == '1' and iso(due) or 'null')
redis.call('ZADD', K('waiting'), due, job.id)
redis.call('ZADD', job.queue, due, job.entry)
watch_deadline(job)
redis.call('PUBLISH', K('wake_channel'), job.kind)
enter(job, A.status, A.reason ~= '' and A.reason or nil, fields)
return {'ok'}
