-- Take due entries for a worker and begin a run of each: the first one of a job, its next one, or the
-- take-over of one whose worker died. Each entry moves to now + lease, so none stays due. A head makes
-- room for its user's next one, so users take turns.
-- A repeat by nature: a claim that is made again, since its answer was lost, answers the same runs.
-- A: worker, claim (its own id), kinds (comma after each), room (how many at most), lease_ms, broken (comma
--    after each: entries that run here by their record, and do not)
-- returns: ms until the next entry is due ('' none is known); for each entry a list: entry, word, and
--    start, lost (its worker died: this is the take-over): run, attempts, max attempts, user, kind, ms to
--       the deadline ('' none), created, waited, input, options, edited (1: a person changed the input)
--    failed (it was too late, or its last attempt died): what is told of it, see `moved`
--    ours (it runs here by its record: its renewal is late, or its run broke unrecorded): nothing
--    damaged (its record holds what is not ours): nothing
local lease = tonumber(A.lease_ms)

local function begun(job)
  local deadline = tonumber(job.deadline)
  local left = deadline and tostring(math.max(0, math.floor(deadline - now))) or ''
  local word = tostring(job.lost) == tostring(job.run) and 'lost' or 'start'
  return {job.entry, word, tostring(job.run), tostring(job.attempts), job.max_attempts, job.user, job.kind, left,
    job.created, tostring(job.waited), redis.call('GET', K('input', job.id)), job.options or false, job.edited or ''}
end

local function failed(job, told)
  return {job.entry, 'failed', unpack(told)}
end

-- What the same claim was answered before, as far as it still holds; nil where it took nothing. Of each
-- worker the last one: it repeats no other, and one for each would stay for minutes.
local memory = K('op', A.worker)
local function answered_before()
  local claim, due, answers = string.match(redis.call('GET', memory) or '', '^(%w*)\n(%d*)\n(.*)$')
  if claim ~= A.claim then return nil end
  local again = {due}
  for word, entry in string.gmatch(answers, '(%l+) ([^,]+),') do
    local job = sound(string.match(entry, '^[^:]+'))
    local same = job and job.entry == entry
    if word == 'ours' or word == 'damaged' then
      table.insert(again, {entry, word})
    elseif same and job.worker == A.worker then
      redis.call('ZADD', job.queue, 'XX', now + lease, entry)
      table.insert(again, begun(job))
    elseif same and job.status == FAILED then
      table.insert(again, failed(job, moved(job, cjson.decode(redis.call('HGET', job.key, 'error')).type)))
    end
  end
  return again
end
local again = answered_before()
if again then return again end

local grace = grace_until(now, lease)
local claimed = {''}
local rooms, full, broken = {}, false, {}
for entry in string.gmatch(A.broken, '([^,]+),') do broken[entry] = true end
for kind in string.gmatch(A.kinds, '([^,]+),') do
  for entry in pairs(broken) do redis.call('ZADD', K('queue', kind), 'XX', now, entry) end
  rooms[kind] = kind_room(kind, now)
end

-- What is first in the queue of each kind, as far as it was looked at since that queue moved.
local first = {}
local function earliest()
  local best, best_due
  for kind, room in pairs(rooms) do
    first[kind] = first[kind] or redis.call('ZRANGE', K('queue', kind), 0, 0, 'WITHSCORES')
    local due = tonumber(first[kind][2])
    if due and room <= 0 then
      full = true
    elseif due and (not best_due or due < best_due) then
      best, best_due = kind, due
    end
  end
  return best, best_due
end

-- The record is gone (evicted, or not ours): whoever waited behind this entry must not wait for ever.
local function drop(kind, entry)
  redis.call('ZREM', K('queue', kind), entry)
  redis.call('ZREM', K('busy', kind), entry)
  local heads = redis.call('HGETALL', K('heads', kind))
  for i = 1, #heads, 2 do
    if heads[i + 1] == entry then promote(kind, heads[i], now) end
  end
end

local function begin_run(job)
  local fields = {'attempts', job.attempts + 1, 'run', job.run + 1, 'worker', A.worker, 'begun', now,
    'retry_at', 'null', 'error', 'null'}
  local function set(field, value)
    table.insert(fields, field)
    table.insert(fields, value)
    job[field] = value
  end
  if job.deferred then
    redis.call('HDEL', job.key, 'deferred')
    set('waited', job.waited + math.floor(now - job.deferred))
  end
  if job.started_at == 'null' then
    set('started_at', iso(now))
    observe(now - job.created, 'pickup\n' .. job.kind)
  end
  job.deferred = false
  watch_deadline(job)
  redis.call('ZREM', K('waiting'), job.id)
  enter(job, RUNNING, nil, fields)
  return begun(job)
end

local function is_overdue(job)
  local deadline, expires = tonumber(job.deadline), job.started_at == 'null' and tonumber(job.expires)
  return (deadline and deadline <= now) or (expires and expires <= now)
end

-- Its worker died, or slept for too long.
local function take_over(job)
  first = {} -- whoever waits for a place of this job is put first in its queue
  local deaths = redis.call('HINCRBY', job.key, 'deaths', 1)
  local unknown = close_open_calls(job, now)
  if job.parked == '1' and unknown > 0 then return failed(job, fail(job, FAILED, UNKNOWN_ERROR, now)) end
  if tonumber(job.attempts) >= tonumber(job.max_attempts) then
    return failed(job, fail(job, FAILED, LOST_ERROR, now, deaths))
  end
  redis.call('ZADD', K('waiting'), now, job.id)
  enter(job, RETRYING, LOST, {'lost', job.run + 1})
  return begin_run(job)
end

local function start(job)
  if among(LOST_FROM, job.status) then return take_over(job) end
  if not among(STARTS_FROM, job.status) then error('the record is damaged') end
  if not is_overdue(job) then return begin_run(job) end
  first = {}
  return failed(job, fail(job, FAILED, OVERDUE_ERROR, now))
end

local function take(kind, entry, nth)
  local id, life = string.match(entry, '^([^:]+):(%d+)$')
  local job = id and load_to_run(id)
  local queue = K('queue', kind)
  if not job or job.life ~= life or job.finished_at ~= 'null' then return drop(kind, entry) end
  if job.worker and job.worker ~= A.worker and grace > now then
    redis.call('ZADD', queue, grace, entry)
    return
  end
  if job.lane then first = {} end -- whoever a place is kept for is put first in its queue
  local at = job.lane and not job.worker and wait_for_lane(job, job.lane, now)
  if at then
    redis.call('ZADD', queue, at, entry)
    redis.call('HSET', job.key, 'retry_at', iso(at))
    return
  end
  redis.call('ZADD', queue, now + lease, entry)
  if job.worker == A.worker and not broken[entry] then
    table.insert(claimed, {entry, 'ours'})
    return
  end
  rooms[kind] = rooms[kind] - redis.call('ZADD', K('busy', kind), now + lease, entry)
  -- A fraction of a millisecond keeps the order of turns within one script.
  step_aside(job, now + nth / 1000)
  table.insert(claimed, start(job))
end

-- A record that holds what is not ours holds nobody up: its worker fails that job.
local function take_all_the_same(kind, entry, nth)
  if pcall(take, kind, entry, nth) then return end
  redis.call('ZADD', K('queue', kind), now + lease, entry)
  table.insert(claimed, {entry, 'damaged'})
end

local room = tonumber(A.room)
for nth = 1, room * 2 + 16 do
  local kind, due = earliest()
  if not kind then
    claimed[1] = ''
    break
  end
  -- Whoever came up in this script is due within a fraction of a millisecond: now.
  local wait = due > now + 0.5 and math.ceil(due - now) or 0
  if wait > 0 or #claimed > room then
    claimed[1] = tostring(wait)
    break
  end
  local entry = first[kind][1]
  first[kind] = nil
  take_all_the_same(kind, entry, nth)
  claimed[1] = '0'
end
-- A full kind wakes its workers; none may leave meanwhile because nothing seems to be left.
if full and claimed[1] == '' then claimed[1] = A.lease_ms end
if #claimed > 1 then
  local answers = ''
  for i = 2, #claimed do answers = answers .. claimed[i][2] .. ' ' .. claimed[i][1] .. ',' end
  redis.call('SET', memory, A.claim .. '\n' .. claimed[1] .. '\n' .. answers, 'PX', OP_KEEP_MS)
end
return claimed
