-- Begin a new life of a final job: a fresh budget, its steps kept, nothing of it expires any more.
-- A: job, quota, from (set of statuses), status (to enter), input (JSON, '' unchanged)
-- returns: word, jobs in flight; word: ok, none, wrong (its status) or full (the quota)
local job = load(A.job)
if not job then return {'none', 0} end
if not among(A.from, job.status) then return {'wrong', 0} end
local set = K('inflight', job.user)
if not quota_left(job.user, tonumber(A.quota)) then return {'full', redis.call('SCARD', set)} end

redis.call('ZREM', K('expiry'), tombstone(job))
for _, name in ipairs(keys_of(job)) do redis.call('PERSIST', name) end
local for_ms = tonumber(redis.call('HGET', job.key, 'deadline_ms'))
redis.call('HINCRBY', job.key, 'life', 1)
redis.call('HSET', job.key, 'attempts', 0, 'deaths', 0, 'waited', 0, 'result', 'null', 'error', 'null',
  'retry_at', 'null', 'started_at', 'null', 'finished_at', 'null', 'expires', '',
  'deadline', for_ms and now + for_ms or '')
if A.input ~= '' then redis.call('HSET', job.key, 'input', A.input, 'edited', 1) end
redis.call('SADD', set, job.id)
local was = job.status
job = load(A.job)
job.status = was
line_up(job, now)
enter(job, A.status)
return {'ok', redis.call('SCARD', set)}
