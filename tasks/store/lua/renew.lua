-- Renew the leases of some of the jobs a worker runs, and say that it lives. It reads of each only what it
-- needs: they are many.
-- A: worker, lease_ms, about (JSON: what the worker says of itself), runs (`job:run` and a blank, each)
-- returns: the jobs that are not its own any more
local lease = tonumber(A.lease_ms)
grace_until(now, lease)
redis.call('SET', K('beat'), now)
redis.call('HSET', K('workers'), A.worker, math.floor(now) .. '\n' .. A.about)
local lost = {}
for id, run in string.gmatch(A.runs, '([^:]+):(%d+) ') do
  local v = redis.pcall('HMGET', K('job', id), 'run', 'status', 'worker', 'kind', 'life')
  if v[1] == run and v[2] == RUNNING and v[3] == A.worker and v[4] and v[5] then
    redis.call('ZADD', K('queue', v[4]), now + lease, id .. ':' .. v[5])
  else
    table.insert(lost, id)
  end
end
return lost
