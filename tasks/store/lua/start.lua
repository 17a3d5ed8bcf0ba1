-- Begin a run of a claimed job: its first, its next, or the take-over of one whose worker died.
-- A repeat by nature: a claim serves one start, after which the same worker finds its own run.
-- A: job, life, worker
-- returns: word, then run, attempts, max attempts, user, kind, ms to the deadline ('' none), created,
--    waited, input, options, edited (1: a person changed the input); word: start, lost (its worker died:
--    this is the take-over), failed (the job, instead; then what is told of it, see `moved`) or none
--    (nothing to do: the entry is stale)
local job = load_whole(A.job)
local function begun()
  local v = redis.call('HMGET', job.key, 'input', 'options', 'edited', 'lost')
  local deadline = tonumber(job.deadline)
  local left = deadline and tostring(math.max(0, math.floor(deadline - now))) or ''
  local word = v[4] == tostring(job.run) and 'lost' or 'start'
  return {word, tostring(job.run), tostring(job.attempts), job.max_attempts, job.user, job.kind, left, job.created,
    tostring(job.waited), v[1], v[2], v[3]}
end
local function run()
  job.attempts, job.run = job.attempts + 1, job.run + 1
  local fields = {'attempts', job.attempts, 'run', job.run, 'worker', A.worker, 'begun', now, 'retry_at', 'null',
    'error', 'null'}
  local function set(field, value)
    table.insert(fields, field)
    table.insert(fields, value)
  end
  redis.call('HDEL', job.key, 'claim', 'deferred')
  if job.deferred then
    job.waited = job.waited + math.floor(now - job.deferred)
    set('waited', job.waited)
  end
  if job.started_at == 'null' then
    job.started_at = iso(now)
    set('started_at', job.started_at)
    observe(now - job.created, 'pickup\n' .. job.kind)
  end
  job.deferred = false
  watch_deadline(job)
  redis.call('ZREM', K('waiting'), job.id)
  enter(job, RUNNING, nil, unpack(fields))
  return begun()
end
local mark = A.worker .. ':' .. A.life
local function told()
  return {'failed', unpack(moved(job, cjson.decode(redis.call('HGET', job.key, 'error')).type))}
end
local function failed(...)
  fail(job, FAILED, ...)
  redis.call('HSET', job.key, 'failed_at', mark)
  return told()
end

if not job or job.life ~= A.life then return {'none'} end
if job.finished_at ~= 'null' and redis.call('HGET', job.key, 'failed_at') == mark then return told() end
if job.worker == A.worker and not job.claim then return begun() end
-- Whoever claimed last may start: a sleeper between its claim and its start comes too late.
if job.claim ~= A.worker then return {'none'} end
if among(STARTS_FROM, job.status) then
  local deadline, expires = tonumber(job.deadline), job.started_at == 'null' and tonumber(job.expires)
  if (deadline and deadline <= now) or (expires and expires <= now) then
    return failed(OVERDUE_ERROR, now)
  end
  return run()
end
if not among(LOST_FROM, job.status) then return {'none'} end

local deaths = redis.call('HINCRBY', job.key, 'deaths', 1)
local unknown = close_open_calls(job, now)
if job.parked == '1' and unknown > 0 then return failed(UNKNOWN_ERROR, now) end
if tonumber(job.attempts) >= tonumber(job.max_attempts) then return failed(LOST_ERROR, now, deaths) end
redis.call('ZADD', K('waiting'), now, job.id)
enter(job, RETRYING, LOST, 'lost', job.run + 1)
return run()
