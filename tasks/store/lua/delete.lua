-- Remove everything of a final job at once.
-- A: job
-- returns: ok, none (no such job) or wrong (it is not final)
local job = load(A.job)
if not job then return {'none'} end
if job.finished_at == 'null' then return {'wrong'} end
redis.call('ZREM', K('expiry'), tombstone(job))
redis.call('ZREM', K('rules'), job.id)
for _, topic in ipairs({'webhook', 'alert'}) do
  redis.call('HDEL', K('letters', topic), job.entry)
  redis.call('ZREM', K('outbox', topic), job.entry)
end
forget_job(job.id, job.kind, job.status, job.user)
local steps = redis.call('HGETALL', K('steps', job.id))
for i = 1, #steps, 2 do
  local memo = memo_of(job.user, string.match(steps[i + 1], '^[^\n]*'))
  if redis.call('GET', memo) == job.id .. '\n' .. steps[i] then redis.call('DEL', memo) end
end
redis.call('DEL', unpack(keys_of(job)))
-- No event: whoever watches looks at the log again, and finds that it is gone.
redis.call('PUBLISH', K('job_channel', job.id), '0\n')
return {'ok'}
