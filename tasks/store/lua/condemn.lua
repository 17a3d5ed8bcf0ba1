-- Fail a job whose record holds what is not ours: the foreign goes, what is missing is made up, and all
-- that others rely on (queues, quota, indexes) is right again. A repeat by nature: an end stands.
-- A: job, life, kinds (comma after each: those of the worker that claimed it), statuses (all there are, a
--    comma after each), final (set of statuses), error (see `fail`), options (in place of those that are lost)
-- returns: what is told of it (see `moved`), or nothing: it has ended already
local id, key, entry = A.job, K('job', A.job), A.job .. ':' .. A.life
local TYPES = {job = 'hash', input = 'string', log = 'stream', steps = 'hash', ledger = 'hash', blob = 'string'}
for template, wanted in pairs(TYPES) do
  if redis.call('TYPE', K(template, id)).ok ~= wanted then redis.call('DEL', K(template, id)) end
end

local function is_json(text)
  return pcall(cjson.decode, text)
end
-- Keep a field that is as it has to be, else put something harmless in its place; answers its value.
local function mend(field, is_sound, instead)
  local value = redis.call('HGET', key, field)
  if value and is_sound(value) then return value end
  redis.call('HSET', key, field, instead)
  return instead
end
local function drop_unless(hash, is_sound)
  local fields = redis.call('HGETALL', hash)
  for i = 1, #fields, 2 do
    if not is_sound(fields[i + 1], fields[i]) then redis.call('HDEL', hash, fields[i]) end
  end
end

local function is_time(text) return text == 'null' or string.find(text, '^"%d[^"]*Z"$') end
local finished_at = mend('finished_at', is_time, 'null')
if finished_at ~= 'null' and among(A.final, redis.call('HGET', key, 'status') or '') then return {} end

-- Whose job it is: by its record, else by the line it stands in.
local kind, user = redis.call('HGET', key, 'kind'), redis.call('HGET', key, 'user')
for known in string.gmatch(A.kinds, '([^,]+),') do
  if redis.call('ZSCORE', K('queue', known), entry) then kind = known end
end
kind = kind or ''
local heads = user and {} or redis.call('HGETALL', K('heads', kind))
for i = 1, #heads, 2 do
  if heads[i + 1] == entry then user = heads[i] end
end
user = user or ''

local created = mend('created', tonumber, now)
local function is_count(text) return string.find(text, '^%-?%d+$') end
for _, field in ipairs({'attempts', 'run', 'open', 'paid', 'rejected', 'not_sent', 'unknown', 'reused',
  'input_tokens', 'output_tokens', 'waited', 'deaths', 'done', 'seq', 'parked', 'ruled'}) do
  mend(field, is_count, 0)
end
mend('max_attempts', is_count, 1)
mend('total', function(text) return text == 'null' or is_count(text) end, 'null')
redis.call('HDEL', key, 'begun')
local INSTEAD = {metadata = '{}', created_at = iso(created), options = A.options, plan = 'null',
  note = 'null', started_at = 'null', callback = 'null', callback_url = 'null'}
for field, instead in pairs(INSTEAD) do mend(field, is_json, instead) end
if not is_json(redis.call('GET', K('input', id)) or '') then redis.call('SET', K('input', id), 'null') end
for _, field in ipairs({'idem', 'fingerprint', 'deadline', 'expires', 'deadline_ms'}) do
  mend(field, function() return true end, '')
end
redis.call('HSET', key, 'life', A.life, 'kind', kind, 'user', user, 'user_id', cjson.encode(user),
  'status', FAILED, 'finished_at', 'null')
local last = redis.call('XREVRANGE', K('log', id), '+', '-', 'COUNT', 1)[1]
local told = last and tonumber(string.match(last[1], '^%d+')) or 0
if told > tonumber(redis.call('HGET', key, 'seq')) then redis.call('HSET', key, 'seq', told) end
drop_unless(K('ledger', id), function(value, field)
  if string.sub(field, 1, 2) ~= 'c:' then return is_count(value) end
  local decoded, line = is_json(value)
  return decoded and type(line) == 'table' and line.outcome and line.model and line.call and line.run
end)
drop_unless(K('steps', id), function(value)
  local result = string.match(value, '^[^\n]*\n(.*)$')
  return result and is_json(result)
end)

for status in string.gmatch(A.statuses, '([^,]+),') do forget_indexes(id, kind, status, user) end
local job = load(id)
for _, name in ipairs(indexes(job.scopes, '*', kind)) do redis.call('ZADD', name, job.created, id) end
redis.call('ZREM', K('deadline'), id)
job.status, job.worker = false, false -- it stands wherever it stood
return fail(job, FAILED, A.error, now)
