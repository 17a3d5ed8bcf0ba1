-- Lanes: all the calls to one model. A call holds a place in its lane for as long as its job is leased.
--
-- Who finds no place stands in a line: users take turns, of each the oldest job comes first. A place
-- that gets free is kept for whoever is next, under the name of its entry, while that comes for it.

local KEPT_MS = 5000 -- a place is kept for so long: from being woken to its call a job takes far less
local LOOK_MS = 60000 -- a job in a line is woken; it looks by itself in case nobody is left to wake it

-- How many at once of a name, of models or kinds; 0: any number.
local function limit_of(limits, name)
  return limits.single[name] or limits.default
end

local function line_of(model, user)
  return K('lane_line', string.format('%d:%s:%s', #model, model, user))
end

-- When a lane that its model closed opens again (ms); 0: it is open.
local function opens_at(model)
  return tonumber(redis.call('HGET', K('cooldown'), model) or 0)
end

-- Drop the places of calls whose worker died. What has lapsed is looked up: the lease is that of its
-- job. After an outage all of them are given time to renew it.
local function heal_lane(lane, now)
  local grace = grace_until(now, LEASE_MS)
  for _, place in ipairs(redis.call('ZRANGEBYSCORE', lane, '-inf', now)) do
    local id, run = string.match(place, '^([^:]+):(%d+):')
    local job = id and sound(id)
    local held = job and job.run == run and job.worker
    local lease = held and math.max(grace, redis.call('ZSCORE', job.queue, job.entry) or 0)
    if held and lease > now then
      redis.call('ZADD', lane, lease, place)
    else
      redis.call('ZREM', lane, place)
    end
  end
end

-- Keep a free place for the next one in line and wake it. Answers whether it still waits.
local function keep_place(lane, entry, now)
  local job = sound(string.match(entry, '^[^:]+'))
  if not job or job.entry ~= entry or job.finished_at ~= 'null' then return false end
  redis.call('ZADD', lane, now + KEPT_MS, entry)
  if not job.worker then
    redis.call('ZADD', job.queue, now, entry)
    redis.call('PUBLISH', K('wake_channel'), job.kind)
  end
  return true
end

-- Hand the free places of a lane to those who wait for them.
local function pass_on(model, now)
  local most, lane, turns = limit_of(MODEL_LIMITS, model), K('lane', model), K('lane_turns', model)
  if opens_at(model) > now then return end
  heal_lane(lane, now)
  local free = most > 0 and most - redis.call('ZCARD', lane) or math.huge
  while free > 0 do
    local user = redis.call('ZRANGE', turns, 0, 0)[1]
    if not user then return end
    local line = line_of(model, user)
    local entry = redis.call('ZPOPMIN', line)[1]
    if entry and keep_place(lane, entry, now) then free = free - 1 end
    if redis.call('EXISTS', line) == 1 then
      local last = tonumber(redis.call('ZRANGE', turns, -1, -1, 'WITHSCORES')[2])
      redis.call('ZADD', turns, math.max(now, last + 0.001), user)
    else
      redis.call('ZREM', turns, user)
    end
  end
end

local function leave_line(job, model)
  local line = line_of(model, job.user)
  redis.call('ZREM', line, job.entry)
  if redis.call('EXISTS', line) == 0 then redis.call('ZREM', K('lane_turns', model), job.user) end
end

-- When a job may look again for a place in a lane (ms); nil: one is kept for it now, or none is
-- needed. Until then it stands in line.
local function wait_for_lane(job, model, now)
  local opens = opens_at(model)
  if opens > now then return opens end
  if limit_of(MODEL_LIMITS, model) == 0 then return nil end
  if redis.call('ZSCORE', K('lane', model), job.entry) then return nil end
  redis.call('ZADD', line_of(model, job.user), job.created, job.entry)
  redis.call('ZADD', K('lane_turns', model), 'NX', now, job.user)
  pass_on(model, now)
  if redis.call('ZSCORE', K('lane', model), job.entry) then return nil end
  return now + LOOK_MS
end

local function give_up_place(model, place, now)
  if redis.call('ZREM', K('lane', model), place) == 1 then pass_on(model, now) end
end

local function place_of(job, run, call)
  return table.concat({job.id, run, call}, ':')
end

-- Take the place that `wait_for_lane` kept. Calls of a lane without a limit are counted, too.
local function take_place(job, model, call, now)
  local lane = K('lane', model)
  if limit_of(MODEL_LIMITS, model) > 0 then redis.call('ZREM', lane, job.entry) end
  if job.lane then
    redis.call('HDEL', job.key, 'lane')
    if job.lane ~= model then give_up_place(job.lane, job.entry, now) end
  end
  redis.call('ZADD', lane, redis.call('ZSCORE', job.queue, job.entry) or now, place_of(job, job.run, call))
  redis.call('SADD', K('lanes'), model)
end

-- The model asked for no call before `at`: nobody calls it until then; the longest wish counts.
local function close_lane(model, at, now)
  if at > math.max(opens_at(model), now) then
    redis.call('HSET', K('cooldown'), model, at)
  end
end

-- Kinds: how many more jobs of one may start now. A job is busy from its claim until it is requeued
-- or final; a full kind drops those whose lease has lapsed, which are due for a take-over.
local function kind_room(kind, now)
  local most, busy = limit_of(KIND_LIMITS, kind), K('busy', kind)
  if most == 0 then return math.huge end
  if redis.call('ZCARD', busy) >= most then
    local grace = grace_until(now, LEASE_MS)
    for _, entry in ipairs(redis.call('ZRANGEBYSCORE', busy, '-inf', now)) do
      local lease = math.max(grace, redis.call('ZSCORE', K('queue', kind), entry) or 0)
      if lease > now then
        redis.call('ZADD', busy, lease, entry)
      else
        redis.call('ZREM', busy, entry)
      end
    end
  end
  return most - redis.call('ZCARD', busy)
end

-- The job holds nothing up any more: no place of its kind, none in a lane or in its line.
local function make_room(job, now)
  redis.call('ZREM', K('busy', job.kind), job.entry)
  if job.lane then
    leave_line(job, job.lane)
    give_up_place(job.lane, job.entry, now)
  end
end
