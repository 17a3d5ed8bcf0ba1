-- Fail waiting jobs whose time is up, revive dead letters by rule, and prune what the end of others left.
-- A: most (of each list at once)
-- returns: for each job that it moved on, what is told of it (see `moved`)
local FULL_MS = 60000 -- the user has as many jobs in flight as are allowed: the rule asks again then
local function end_overdue(id)
  local job = load(id)
  if not job or job.finished_at ~= 'null' then
    redis.call('ZREM', K('deadline'), id)
  elseif among(WAITS, job.status) then
    if (watch_deadline(job) or math.huge) <= now then
      local patience = patience_ends(job)
      return fail(job, FAILED, patience and patience <= now and WAITED_ERROR or OVERDUE_ERROR, now)
    end
  else
    -- Its worker ends it; should that one die, the take-over finds the deadline passed.
    redis.call('ZADD', K('deadline'), now + LEASE_MS, id)
  end
end
local function obey(id)
  local job = load(id)
  if job and among(RULED, job.status) and not quota_left(job.user, QUOTA) then
    redis.call('ZADD', K('rules'), now + FULL_MS, id)
  else
    redis.call('ZREM', K('rules'), id)
    if job and among(RULED, job.status) then
      redis.call('HINCRBY', job.key, 'ruled', 1)
      revive(job, QUEUED, now)
      return moved(load(id), 'retried by a rule')
    end
  end
end
-- A record that holds what is not ours holds nobody up: it is let go here, and fails at its claim.
local told = {}
for index, look_at in pairs({deadline = end_overdue, rules = obey}) do
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', K(index), '-inf', now, 'LIMIT', 0, A.most)) do
    local fine, move = pcall(look_at, id)
    if not fine then redis.call('ZREM', K(index), id) end
    if fine and move then table.insert(told, move) end
  end
end
for _, mark in ipairs(redis.call('ZRANGEBYSCORE', K('expiry'), '-inf', now, 'LIMIT', 0, A.most)) do
  local id, kind, status, user = string.match(mark, '^([^\n]*)\n([^\n]*)\n([^\n]*)\n(.*)$')
  redis.call('ZREM', K('expiry'), mark)
  forget_job(id, kind, status, user)
end
for _, model in ipairs(redis.call('SMEMBERS', K('lanes'))) do
  if opens_at(model) <= now then
    redis.call('HDEL', K('cooldown'), model)
    pass_on(model, now)
    if redis.call('EXISTS', K('lane', model), K('lane_turns', model)) == 0 then
      redis.call('SREM', K('lanes'), model)
    end
  end
end
local workers = redis.call('HGETALL', K('workers'))
for i = 1, #workers, 2 do
  if tonumber(string.match(workers[i + 1], '^%d+')) < now - 3 * LEASE_MS then
    redis.call('HDEL', K('workers'), workers[i])
  end
end
return told
