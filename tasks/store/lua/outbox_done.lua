-- A letter is delivered and goes, or waits for its next try with what is to be known then.
-- A: topic, id, wait_ms ('' delivered), payload
-- returns: ok
if A.wait_ms == '' then
  redis.call('HDEL', K('letters', A.topic), A.id)
  redis.call('ZREM', K('outbox', A.topic), A.id)
elseif redis.call('HEXISTS', K('letters', A.topic), A.id) == 1 then
  redis.call('HSET', K('letters', A.topic), A.id, A.payload)
  redis.call('ZADD', K('outbox', A.topic), now + A.wait_ms, A.id)
end
return {'ok'}
