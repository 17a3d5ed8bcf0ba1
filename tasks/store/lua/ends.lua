-- The end of a job's life, for every script that brings one about.

-- Calls of a run that is over and never told its outcome: nobody knows whether they were sold.
local function close_open_calls(job, now)
  if job.open == '0' then return 0 end
  local ledger, closed = K('ledger', job.id), 0
  local fields = redis.call('HGETALL', ledger)
  for i = 1, #fields, 2 do
    if string.sub(fields[i], 1, 2) == 'c:' then
      local line = cjson.decode(fields[i + 1])
      if line.outcome == 'open' then
        line.outcome, line.ended = 'unknown', math.floor(now)
        redis.call('HSET', ledger, fields[i], cjson.encode(line))
        give_up_place(line.model, place_of(job, line.run, line.call), now)
        closed = closed + 1
      end
    end
  end
  put(job, {'open', '0', 'unknown', job.unknown + closed})
  return closed
end

local function keys_of(job)
  local names = {job.key, K('input', job.id), K('log', job.id), K('steps', job.id), K('ledger', job.id),
    K('blob', job.id)}
  if job.idem ~= '' then table.insert(names, K('idem', job.idem)) end
  return names
end

-- A final job's place in `expiry`: all that pruning needs when the record itself is gone.
local function tombstone(job)
  return table.concat({job.id, job.kind, job.status, job.user}, '\n')
end

local function forget_indexes(id, kind, status, user)
  local scopes = {'*', '=' .. user}
  for _, s in ipairs({'*', status}) do
    for _, name in ipairs(indexes(scopes, s, kind)) do redis.call('ZREM', name, id) end
  end
end

-- A job is gone: so are its places in the indexes and, with the last one of its user, their feed.
local function forget_job(id, kind, status, user)
  forget_indexes(id, kind, status, user)
  for _, scope in ipairs({'*', '=' .. user}) do
    if redis.call('EXISTS', K('index', '*', '*', scope)) == 0 then redis.call('DEL', K('feed', scope)) end
  end
end

-- What a job that is done says of the pace of its like: the newest ones count most. One that was tried
-- again or took steps from a store says nothing.
local function learn_pace(job, now)
  if job.attempts ~= '1' or job.reused ~= '0' or not job.begun then return end
  for _, model in ipairs((job.model or '') ~= '' and {'', job.model} or {''}) do
    local key = K('pace', job.kind, model)
    local was = tonumber(redis.call('GET', key))
    local took = now - job.begun
    redis.call('SET', key, was and 0.8 * was + 0.2 * took or took, 'PX', KEEP_MS)
  end
end

-- A rule revives what failed in its way: after a time, so often until a person decides.
local function obey_rule(job, now, err)
  local rule = RULES[cjson.decode(err).type]
  local ruled = tonumber(redis.call('HGET', job.key, 'ruled') or 0)
  if rule and ruled < rule.times then redis.call('ZADD', K('rules'), now + rule.after_ms, job.id) end
end

-- A letter to the address that came with the job: what happened, and where to read the rest.
local function post_callback(job, status, now, err)
  if not job.callback_url or job.callback_url == 'null' then return end
  local trace = string.match(redis.call('HGET', job.key, 'options') or '', '"trace":(%b{})') or '{}'
  put(job, {'callback', '{"state":"pending","attempts":0,"status":null,"next_at":' .. iso(now) .. '}'})
  post('webhook', job, now, table.concat({
    '{"url":', job.callback_url, ',"trace":', trace,
    ',"event":{"type":"job.', string.sub(status, 2, -2), '","timestamp":', iso(now),
    ',"data":{"job_id":"', job.id, '","kind":"', job.kind, '","status":', status, ',"user_id":', job.user_id,
    ',"attempts":', job.attempts, ',"error":', err or 'null', ',"metadata":', job.metadata,
    ',"links":{"self":"/jobs/', job.id, '"}}}}'}))
end

-- A letter to everybody who is told of failures. Those of one window are due together, so that they can
-- become one alert.
local function post_alerts(job, shown, now)
  local window = ALERT_WINDOW_MS
  local due = window > 0 and (math.floor(now / window) + 1) * window or now
  local letter = '{"job":' .. shown .. '}'
  for _, target in ipairs(ALERT_TARGETS) do post('alert:' .. target, job, due, letter) end
end

-- End a life: nothing of it is left in any queue or quota, and everything expires together.
-- `alert`: people are told of it.
local function conclude(job, status, now, result, err, alert)
  close_open_calls(job, now)
  if job.lane or job.deferred then redis.call('HDEL', job.key, 'lane', 'deferred') end
  redis.call('ZREM', job.queue, job.entry)
  make_room(job, now)
  -- One that runs has left its line: whoever was behind it has moved up.
  local stood = not job.worker
  if stood then
    redis.call('ZREM', K('waiting'), job.id)
    redis.call('ZREM', K('turns', job.kind, job.user), job.entry)
  end
  if stood and step_aside(job, now) or limit_of(KIND_LIMITS, job.kind) > 0 then
    redis.call('PUBLISH', K('wake_channel'), job.kind)
  end
  if is_watched(job) then redis.call('ZREM', K('deadline'), job.id) end
  redis.call('SREM', K('inflight', job.user), job.id)
  if result and result ~= 'null' then learn_pace(job, now) end
  post_callback(job, status, now, err)
  job.worker = false
  local shown = enter(job, status, nil, {'result', result or 'null', 'error', err or 'null', 'retry_at', 'null',
    'note', 'null', 'finished_at', iso(now)})
  if alert and ALERT_TARGETS[1] then post_alerts(job, shown, now) end
  if err and err ~= 'null' then obey_rule(job, now, err) end
  redis.call('ZADD', K('expiry'), now + KEEP_MS, tombstone(job))
  for _, name in ipairs(keys_of(job)) do redis.call('PEXPIRE', name, KEEP_MS) end
end

-- What is told of a job that a script moved on by itself: its id, user, kind, attempts, status, why, and
-- its trace ('' none).
local function moved(job, reason)
  local options = redis.call('HGET', job.key, 'options') or ''
  local trace = string.match(options, '"traceparent":"%x+%-(%x+)%-') or ''
  return {job.id, job.user, job.kind, job.attempts, string.sub(job.status, 2, -2), reason, trace}
end

-- Fail a job in the caller's words: an error whose first `%d` is the attempt, a second one `n`. Answers
-- what is told of it.
local function fail(job, status, err, now, n)
  local told = string.format(err, tonumber(job.attempts), n or 0)
  conclude(job, status, now, nil, told, true)
  return moved(job, cjson.decode(told).type)
end

-- Begin a new life of a final job: a fresh budget, its steps kept, nothing of it expires any more.
local function revive(job, status, now)
  redis.call('ZREM', K('expiry'), tombstone(job))
  for _, name in ipairs(keys_of(job)) do redis.call('PERSIST', name) end
  local for_ms = tonumber(redis.call('HGET', job.key, 'deadline_ms'))
  redis.call('HINCRBY', job.key, 'life', 1)
  redis.call('HDEL', job.key, 'deaths', 'waited', 'result', 'error', 'retry_at', 'started_at', 'expires', 'deadline')
  redis.call('HSET', job.key, 'attempts', 0, 'finished_at', 'null', 'deadline', for_ms and now + for_ms or '')
  redis.call('SADD', K('inflight', job.user), job.id)
  job = load(job.id)
  line_up(job, now)
  enter(job, status)
end
