-- The lanes in which something goes on.
-- A: (nothing)
-- returns: for each: model, calls open, calls at once (0: any number), jobs in line, when it opens (ms,
--    '' it is open)
local found = {}
for _, model in ipairs(redis.call('SMEMBERS', K('lanes'))) do
  local in_line = 0
  for _, user in ipairs(redis.call('ZRANGE', K('lane_turns', model), 0, -1)) do
    in_line = in_line + redis.call('ZCARD', line_of(model, user))
  end
  local opens = opens_at(model)
  table.insert(found, {model, redis.call('ZCARD', K('lane', model)), limit_of(MODEL_LIMITS, model), in_line,
    opens > now and tostring(opens) or ''})
end
return found
