-- Renew the leases of all the jobs a worker runs, and say that it lives.
-- A: worker, lease_ms, about (JSON: what the worker says of itself), runs (`job:run` and a blank, each)
-- returns: the jobs that are not its own any more
local lease = tonumber(A.lease_ms)
grace_until(now, lease)
redis.call('SET', K('beat'), now)
redis.call('HSET', K('workers'), A.worker, math.floor(now) .. '\n' .. A.about)
local lost = {}
for id, run in string.gmatch(A.runs, '([^:]+):(%d+) ') do
  local job = sound(id)
  if job and job.run == run and job.worker == A.worker then
    redis.call('ZADD', job.queue, now + lease, job.entry)
  else
    table.insert(lost, id)
  end
end
return lost
