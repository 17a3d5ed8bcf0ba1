-- Begin a run of a claimed job: its first, its next, or the take-over of one whose worker died.
-- A repeat by nature: a claim serves one start, after which the same worker finds its own run.
-- A: job, life, worker, start_from, lost_from (sets of statuses), running, retrying, failed (targets),
--    lost (the reason), overdue_error, unknown_error, lost_error (see `fail`)
-- returns: word, then run, attempts, max attempts, user, kind, ms to the deadline ('' none), created,
--    waited, input, options, edited (1: a person changed the input); word: start, lost (its worker died:
--    this is the take-over), failed (the job, instead; then what is told of it, see `moved`) or none
--    (nothing to do: the entry is stale)
local job = load_whole(A.job)
local function begun()
  local v = redis.call('HMGET', job.key, 'run', 'attempts', 'max_attempts', 'user', 'kind', 'deadline',
    'created', 'waited', 'input', 'options', 'edited')
  local deadline = tonumber(v[6])
  v[6] = deadline and tostring(math.max(0, math.floor(deadline - now))) or ''
  local lost = redis.call('HGET', job.key, 'lost') == v[1]
  return {lost and 'lost' or 'start', unpack(v)}
end
local function run()
  redis.call('HINCRBY', job.key, 'attempts', 1)
  redis.call('HINCRBY', job.key, 'run', 1)
  redis.call('HSET', job.key, 'worker', A.worker, 'begun', now, 'retry_at', 'null', 'error', 'null')
  redis.call('HDEL', job.key, 'claim')
  if job.deferred then
    redis.call('HINCRBY', job.key, 'waited', math.floor(now - job.deferred))
    redis.call('HDEL', job.key, 'deferred')
  end
  if job.started_at == 'null' then
    job.started_at = iso(now)
    observe(now - job.created, 'pickup', job.kind)
    redis.call('HSET', job.key, 'started_at', job.started_at)
  end
  job.deferred = false
  watch_deadline(job)
  redis.call('ZREM', K('waiting'), job.id)
  enter(job, A.running)
  return begun()
end
local mark = A.worker .. ':' .. A.life
local function told()
  return {'failed', unpack(moved(job, cjson.decode(redis.call('HGET', job.key, 'error')).type))}
end
local function failed(...)
  fail(job, A.failed, ...)
  redis.call('HSET', job.key, 'failed_at', mark)
  return told()
end

if not job or job.life ~= A.life then return {'none'} end
if job.finished_at ~= 'null' and redis.call('HGET', job.key, 'failed_at') == mark then return told() end
if job.worker == A.worker and not job.claim then return begun() end
-- Whoever claimed last may start: a sleeper between its claim and its start comes too late.
if job.claim ~= A.worker then return {'none'} end
if among(A.start_from, job.status) then
  local deadline, expires = tonumber(job.deadline), job.started_at == 'null' and tonumber(job.expires)
  if (deadline and deadline <= now) or (expires and expires <= now) then
    return failed(A.overdue_error, now)
  end
  return run()
end
if not among(A.lost_from, job.status) then return {'none'} end

local deaths = redis.call('HINCRBY', job.key, 'deaths', 1)
local unknown = close_open_calls(job, now)
if job.parked == '1' and unknown > 0 then return failed(A.unknown_error, now) end
if tonumber(job.attempts) >= tonumber(job.max_attempts) then return failed(A.lost_error, now, deaths) end
redis.call('ZADD', K('waiting'), now, job.id)
enter(job, A.retrying, A.lost)
redis.call('HSET', job.key, 'lost', job.run + 1)
return run()
