-- Take the due letters of a topic, under a lease: should the taker die, another one gets them.
-- A: topic, lease_ms, most
-- returns: id, payload, id, payload …
local taken = {}
for _, id in ipairs(redis.call('ZRANGEBYSCORE', K('outbox', A.topic), '-inf', now, 'LIMIT', 0, A.most)) do
  local payload = redis.call('HGET', K('letters', A.topic), id)
  if payload then
    redis.call('ZADD', K('outbox', A.topic), now + A.lease_ms, id)
    table.insert(taken, id)
    table.insert(taken, payload)
  else
    redis.call('ZREM', K('outbox', A.topic), id)
  end
end
return taken
