-- What has to leave the house, written by the script that is its cause: nothing is lost between the two.

-- Put a letter of a topic in its outbox, due at `due`; its payload is a JSON object. One for each life.
local function post(topic, job, due, payload)
  redis.call('HSET', K('letters', topic), job.entry, payload)
  redis.call('ZADD', K('outbox', topic), due, job.entry)
end
