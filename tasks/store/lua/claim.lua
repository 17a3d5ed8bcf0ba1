-- Take due entries for a worker: waiting ones, and running ones whose lease has lapsed. Each moves to
-- now + lease, so none stays due. A head makes room for its user's next one, so users take turns.
-- A: worker, kinds (comma after each), room (how many at most), lease_ms
-- returns: ms until the next entry is due ('' none is known), entry…
local lease = tonumber(A.lease_ms)
local grace = grace_until(now, lease)
local claimed = {''}
local rooms, full = {}, false
for kind in string.gmatch(A.kinds, '([^,]+),') do rooms[kind] = kind_room(kind, now) end

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

local function take(kind, entry, nth)
  local id, life = string.match(entry, '^([^:]+):(%d+)$')
  local job = id and load_whole(id)
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
  -- Also a job that runs here by its record: its renewal is late, or its run broke unrecorded.
  redis.call('HSET', job.key, 'claim', A.worker)
  rooms[kind] = rooms[kind] - redis.call('ZADD', K('busy', kind), now + lease, entry)
  -- A fraction of a millisecond keeps the order of turns within one script.
  step_aside(job, now + nth / 1000)
  table.insert(claimed, entry)
end

-- A record that holds what is not ours holds nobody up: whoever starts that job finds out and fails it.
local function take_all_the_same(kind, entry, nth)
  if pcall(take, kind, entry, nth) then return end
  redis.call('ZADD', K('queue', kind), now + lease, entry)
  table.insert(claimed, entry)
end

local room = tonumber(A.room)
for nth = 1, room * 2 + 16 do
  local kind, due = earliest()
  if not kind then
    claimed[1] = ''
    break
  end
  if due > now + 0.5 or #claimed > room then
    claimed[1] = tostring(math.max(0, math.ceil(due - now)))
    break
  end
  local entry = first[kind][1]
  first[kind] = nil
  take_all_the_same(kind, entry, nth)
  claimed[1] = '0'
end
-- A full kind wakes its workers; none may leave meanwhile because nothing seems to be left.
if full and claimed[1] == '' then claimed[1] = A.lease_ms end
return claimed
