-- What all scripts share: names, time, guards, the record as JSON, the log, queues, steps.
--
-- scripts.py makes one library of functions of it: the names of the inventory, what constants.py says, this,
-- lanes.lua, outbox.lua and ends.lua, then each script as `script(A, now, args, rest)` in what wrap.lua puts
-- around it. Arguments: operation id ('' where the script is a repeat by nature), the caller's clock in ms
-- ('' = Redis TIME), then name, value, name, value … which become the table A; a name '' ends them, and of
-- `args` what begins at `rest` is one list.
-- Names are built here, not passed as KEYS: one transition touches neighbours its caller does not
-- know (the next one in turn), so slowcall needs one Redis, not a cluster.
-- Lua holds no status word and reads no user data: it moves opaque JSON fragments.
--
-- Fields of the job hash. Public ones hold JSON fragments under the contract's names. What is 0, null or
-- empty may be missing (each field costs at every transition), but for `attempts` and `finished_at`: what
-- forbids a run must not be forgotten with them. Private ones:
--   run       the fence: rises at every start and take-over, never used again
--   life      rises at each revive; the queue entry is `{job}:{life}`
--   seq       number of the newest event of the log
--   worker    worker of its newest run                      deaths   workers that died of it, this life
--   deltas    `{run}:{n}`: the last delta of the run        lost     its last run that was a take-over
--   user      raw text (`user_id` is its fragment; `kind` alone needs no quotes)
--   options   JSON, as submitted                            fingerprint      of the body, for the key
--   created, deadline, expires    ms ('' none)              waited   ms spent on closed lanes before
--   lane      the model that it waits to call               deferred since when it waits now (ms)
--   begun     when its present run began (ms)               model    of its newest call, or of its input
--   callback_url                  JSON, the address that is told of the end
--   ruled     how often a rule revived it since a person decided
--   idem      the idempotency key's part of its name        parked   1: an unknown outcome goes to a person

-- A name of the inventory, its ids joined to its beginning: half of what a script does is to name keys.
local function K(template, a, b, c)
  local name = NAMES[template]
  if c then return name .. a .. ':' .. b .. ':' .. c end
  if b then return name .. a .. ':' .. b end
  return a and name .. a or name
end

-- Add to a figure that every server shows; `field`: its name, then its labels, a line each. Bounded,
-- since models are named by users: what would be one too many goes again.
local function count(n, field)
  local figures = K('figures')
  if redis.call('HINCRBY', figures, field, n) == tonumber(n) and redis.call('HLEN', figures) > 5000 then
    redis.call('HDEL', figures, field)
  end
end

-- Add to a histogram of ms; what is counted is the bucket it falls in, the reader adds them up.
local function observe(ms, field)
  local bucket = '+Inf'
  for _, bound in ipairs(BUCKETS_MS) do
    if ms <= bound then
      bucket = bound
      break
    end
  end
  count(1, field .. '\n' .. bucket)
  count(math.floor(ms), field .. '\nsum')
end

-- The time of this script (ms), for what is shown; set by the wrapper.
local NOW

local function clock()
  local t = redis.call('TIME')
  return t[1] * 1000 + t[2] / 1000
end

-- Days to a date: the proleptic Gregorian calendar counted in eras of 400 years from 1 March 0000.
local function iso(ms)
  local s = math.floor(ms / 1000)
  local z = math.floor(s / 86400) + 719468
  local era = math.floor(z / 146097)
  local doe = z - era * 146097
  local yoe = math.floor((doe - math.floor(doe / 1460) + math.floor(doe / 36524) - math.floor(doe / 146096)) / 365)
  local doy = doe - (365 * yoe + math.floor(yoe / 4) - math.floor(yoe / 100))
  local mp = math.floor((5 * doy + 2) / 153)
  local month = mp < 10 and mp + 3 or mp - 9
  local year = yoe + era * 400 + (month <= 2 and 1 or 0)
  return string.format('"%04d-%02d-%02dT%02d:%02d:%02d.%03dZ"', year, month,
    doy - math.floor((153 * mp + 2) / 5) + 1,
    math.floor(s / 3600) % 24, math.floor(s / 60) % 60, s % 60, math.floor(ms) % 1000)
end

local UNSET = {deadline = '', deadline_ms = '', expires = '', idem = '', fingerprint = '', parked = '0',
  open = '0', deaths = '0', started_at = 'null', waited = '0', done = '0', reused = '0', total = 'null',
  note = 'null', result = 'null', error = 'null', retry_at = 'null', callback = 'null', paid = '0',
  rejected = '0', not_sent = '0', unknown = '0', input_tokens = '0', output_tokens = '0'}
local JOB = {__index = UNSET}

-- A job, or nil. `status` is a fragment: "queued" with its quotes. Its input may be large: it lies elsewhere.
local function load(id)
  local record = redis.call('HGETALL', K('job', id))
  local job = setmetatable({}, JOB)
  for i = 1, #record, 2 do job[record[i]] = record[i + 1] end
  if not job.status then return nil end
  if job.status ~= RUNNING then job.worker = nil end
  job.id = id
  job.key = K('job', id)
  job.entry = id .. ':' .. job.life
  job.queue = K('queue', job.kind)
  job.scopes = {'*', '=' .. job.user}
  return job
end

-- The same for whoever takes a job up: one that is there, but not as we write it, is no stale entry.
local function load_to_run(id)
  local job = load(id)
  local whole = job and string.find(job.life .. job.run .. job.attempts .. job.seq, '^%d+$') and job.finished_at
  if not whole and (job or redis.call('EXISTS', K('job', id)) == 1) then error('the record is damaged') end
  return job
end

-- The same for whoever looks at jobs of others: one that holds what is not ours stops nobody.
local function sound(id)
  local fine, job = pcall(load, id)
  return fine and job or nil
end

-- Write fields of a job (name, value …), there and here. What is unset, and stays so, is left out.
local function put(job, fields)
  local new = {}
  for i = 1, #fields, 2 do
    local name, value = fields[i], fields[i + 1]
    if value ~= UNSET[name] or job[name] ~= value then
      job[name] = value
      table.insert(new, name)
      table.insert(new, value)
    end
  end
  redis.call('HSET', job.key, unpack(new))
end

-- `set` is a list of fragments, "queued","retrying": the quotes keep words apart.
local function among(set, status)
  return string.find(set, status, 1, true) ~= nil
end

-- The guard of all a worker writes: its run is the job's present one, and the job still runs.
local function holds(job, A)
  return job and job.run == A.run and job.worker
end

-- The plan of a kind that tells one is a part of its progress, so that a page can tick it off.
local function plan_part(plan)
  return plan and plan ~= 'null' and plan ~= '' and ',"plan":' .. plan or ''
end

-- How long a job of a kind and model takes (ms), by those that are done; nil without evidence.
local function pace_of(kind, model)
  local own = model ~= '' and redis.call('GET', K('pace', kind, model))
  return tonumber(own or redis.call('GET', K('pace', kind, '')))
end

-- Seconds until a job ends, as JSON: by its own progress in its first run, else by the pace of its like
-- and of what is before it.
local function eta(job, rank)
  if job.finished_at ~= 'null' then return 'null' end
  local pace, ms = pace_of(job.kind, job.model or ''), nil
  if job.worker then
    local passed, part = NOW - job.begun, job.total ~= 'null' and job.done / job.total or 0
    if tonumber(job.run) == 1 and part > 0 then
      ms = passed / part - passed
    elseif pace then
      ms = math.max(0, pace - passed)
    end
  elseif pace then
    local due = tonumber(redis.call('ZSCORE', K('waiting'), job.id) or NOW)
    local turn = (rank or 0) * pace / math.max(1, redis.call('ZCARD', K('busy', job.kind)))
    ms = math.max(due - NOW, turn) + pace
  end
  return ms and string.format('%.1f', ms / 1000) or 'null'
end

-- A job as the contract shows it; `reason` (text or nil) is added to a state event. One chain
-- of `..` is one instruction: a table to join cost three times as much.
local function render(job, reason)
  local rank = not job.worker and job.finished_at == 'null' and redis.call('ZRANK', K('waiting'), job.id)
  local self = '"/jobs/' .. job.id
  return '{"job_id":"' .. job.id .. '","kind":"' .. job.kind .. '","status":' .. job.status
    .. ',"user_id":' .. job.user_id .. ',"attempts":' .. job.attempts .. ',"max_attempts":' .. job.max_attempts
    .. ',"progress":{"done":' .. job.done .. ',"total":' .. job.total .. ',"note":' .. job.note
    .. plan_part(job.plan) .. '},"result":' .. job.result .. ',"error":' .. job.error .. ',"retry_at":' .. job.retry_at
    .. ',"queue_position":' .. (rank and rank + 1 or 'null') .. ',"eta_s":' .. eta(job, rank)
    .. ',"ledger":{"paid":' .. job.paid .. ',"open":' .. job.open .. ',"rejected":' .. job.rejected
    .. ',"not_sent":' .. job.not_sent .. ',"unknown":' .. job.unknown .. ',"reused":' .. job.reused
    .. ',"input_tokens":' .. job.input_tokens .. ',"output_tokens":' .. job.output_tokens
    .. '},"metadata":' .. job.metadata .. ',"created_at":' .. job.created_at .. ',"started_at":' .. job.started_at
    .. ',"finished_at":' .. job.finished_at .. ',"callback":' .. job.callback .. ',"links":{"self":' .. self
    .. '","stream":' .. self .. '/stream","cancel":' .. self .. '/cancel","retry":' .. self .. '/retry"}'
    .. (reason and ',"reason":"' .. reason .. '"' or '') .. '}'
end

-- What a reader gets for one job: its JSON, status fragment, user, sequence number.
local function view(id)
  local job = load(id)
  return {render(job), job.status, job.user, job.seq}
end

-- Append the event that `job.seq` counts already to the log and publish it; `fed`: also to the feeds of
-- its user and of all.
local function emit(job, event, data, fed)
  local seq = job.seq
  local block = 'event: ' .. event .. '\ndata: ' .. data .. '\n\n'
  local log = K('log', job.id)
  local said = redis.pcall('XADD', log, seq .. '-0', 'b', block)
  if type(said) == 'table' then
    -- Where something else stands in its place it begins anew; its readers get a snapshot.
    if string.find(said.err, '^WRONGTYPE') then redis.call('DEL', log) end
    redis.call('XADD', log, seq .. '-0', 'b', block)
  end
  redis.call('PUBLISH', K('job_channel', job.id), seq .. '\n' .. block)
  if not fed then return end
  for _, scope in ipairs(job.scopes) do
    local feed = K('feed', scope)
    local feed_id = redis.call('XADD', feed, 'MAXLEN', '~', FEED_LENGTH, '*', 'j', job.id, 's', seq)
    redis.call('PUBLISH', K('feed_channel', scope), feed_id .. '\n' .. block)
  end
end

-- The index sets a job of a status stands in, for each of its scopes: one by submission and one by kind,
-- or, with a status, the one of that.
local function indexes(scopes, status, kind)
  local names = {}
  for _, scope in ipairs(scopes) do
    if status == '*' then
      table.insert(names, K('index', '*', '*', scope))
      table.insert(names, K('index', kind, '*', scope))
    else
      table.insert(names, K('index', '*', status, scope))
    end
  end
  return names
end

-- Enter a status: write it and the fields that come with it (a list), move the job in the indexes, log and
-- publish the state event. Answers the job as it was shown.
local function enter(job, status, reason, fields)
  local was = job.status
  fields = fields or {}
  table.insert(fields, 'status')
  table.insert(fields, status)
  table.insert(fields, 'seq')
  table.insert(fields, job.seq + 1)
  put(job, fields)
  if was ~= status then
    for _, scope in ipairs(job.scopes) do
      if was then redis.call('ZREM', K('index', '*', was, scope), job.id) end
      redis.call('ZADD', K('index', '*', status, scope), job.created, job.id)
    end
  end
  local word = string.sub(status, 2, -2)
  count(1, 'entered\n' .. job.kind .. '\n' .. word .. '\n' .. (reason or ''))
  local json = render(job, reason)
  emit(job, word, json, true)
  return json
end

-- Only the head of a user's waiting list is in arq's queue. Put the next one there, if there is one.
local function promote(kind, user, due)
  local turns, heads = K('turns', kind, user), K('heads', kind)
  local next = redis.call('ZPOPMIN', turns)[1]
  if next then
    redis.call('HSET', heads, user, next)
    redis.call('ZADD', K('queue', kind), due, next)
  else
    redis.call('HDEL', heads, user)
  end
end

-- When a job that waits for the model has waited for as long as a job may in all, or nil.
local function patience_ends(job)
  return job.deferred and job.deferred + MAX_WAIT_MS - job.waited
end

-- Whether a job is, or was in this life, among those that have a deadline.
local function is_watched(job)
  return job.deadline ~= '' or job.expires ~= '' or job.waited ~= '0' or job.deferred
end

-- The time by which somebody must look at a waiting job: its deadline, that of its first start, or
-- the end of its patience.
local function watch_deadline(job)
  local at, expires = tonumber(job.deadline), job.started_at == 'null' and tonumber(job.expires)
  if expires and (not at or expires < at) then at = expires end
  local patience = patience_ends(job)
  if patience and (not at or patience < at) then at = patience end
  if at then
    redis.call('ZADD', K('deadline'), at, job.id)
  elseif is_watched(job) then
    redis.call('ZREM', K('deadline'), job.id)
  end
  return at
end

-- A new life joins the waiting list of its user; it is in the queue at once when nobody is before it.
local function line_up(job, now)
  redis.call('ZADD', K('waiting'), now, job.id)
  watch_deadline(job)
  if redis.call('HSETNX', K('heads', job.kind), job.user, job.entry) == 1 then
    redis.call('ZADD', job.queue, now, job.entry)
  else
    redis.call('ZADD', K('turns', job.kind, job.user), now, job.entry)
  end
  redis.call('PUBLISH', K('wake_channel'), job.kind)
end

-- The entry is its user's head: its turn has come or it leaves, so the next one moves up.
local function step_aside(job, due)
  if redis.call('HGET', K('heads', job.kind), job.user) ~= job.entry then return false end
  promote(job.kind, job.user, due)
  return true
end

-- Whether one job more may be in flight, and how many are: a set of ids, never a counter. A full one
-- first drops members whose job is final or gone (case D6).
local function quota_left(user, quota)
  local set = K('inflight', user)
  local count = redis.call('SCARD', set)
  if quota == 0 or count < quota then return true, count end
  for _, id in ipairs(redis.call('SMEMBERS', set)) do
    if redis.pcall('HGET', K('job', id), 'finished_at') ~= 'null' then redis.call('SREM', set, id) end
  end
  count = redis.call('SCARD', set)
  return count < quota, count
end

-- Store a step's result once: the first one wins. Answers whether this was the first.
local function keep_step(job, A)
  local steps = K('steps', job.id)
  local first = redis.call('HSETNX', steps, A.step, A.hash .. '\n' .. A.value) == 1
  if job.finished_at ~= 'null' then redis.call('PEXPIRE', steps, redis.call('PTTL', job.key)) end
  return first
end

-- The answer to a request is found again by its hash and its user, as long as its job is there.
local function memo_of(user, hash)
  return K('memo', hash .. ':' .. user)
end

-- The step of an earlier job that answered this request, as kept (hash, line feed, JSON), or nil.
local function recall(user, hash)
  local id, step = string.match(redis.call('GET', memo_of(user, hash)) or '', '^([^\n]+)\n(.*)$')
  local kept = id and redis.call('HGET', K('steps', id), step)
  return kept and string.sub(kept, 1, #hash + 1) == hash .. '\n' and kept or nil
end

-- Progress never goes down, whatever a later attempt or an old worker says (case E6).
local function advance(job, A)
  local done = math.max(tonumber(job.done), tonumber(A.done))
  job.seq = job.seq + 1
  redis.call('HSET', job.key, 'seq', job.seq, 'done', done, 'total', A.total, 'note', A.note)
  if plan_part(A.plan) ~= '' then redis.call('HSET', job.key, 'plan', A.plan) end
  emit(job, 'progress', table.concat({'{"job_id":"', job.id, '","progress":{"done":', done,
    ',"total":', A.total, ',"note":', A.note, plan_part(A.plan), '}}'}), true)
end

-- Nobody renewed anything for longer than a lease: the store was away, not the workers. Take-overs
-- wait one lease more, so that all can renew first; else an outage buys every call in flight twice.
local function grace_until(now, lease)
  local beat = tonumber(redis.call('GET', K('beat')))
  if beat and now - beat > lease then
    redis.call('SET', K('grace'), now + lease, 'PX', math.ceil(lease))
    redis.call('SET', K('beat'), now)
  end
  return tonumber(redis.call('GET', K('grace')) or 0)
end
