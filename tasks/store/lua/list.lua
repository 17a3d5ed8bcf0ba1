-- One page of an index, newest first. A member whose job is gone (pruning is behind) is passed over.
-- A: kind, status, scope (`*` for all each), limit, score, after ('' from the newest: the last one seen)
-- returns: for each job: score, id, view…
local name, limit = K('index', A.kind, A.status, A.scope), tonumber(A.limit)
local found, from, skip = {}, A.score ~= '' and A.score or '+inf', 0
while #found < limit do
  local page = redis.call('ZREVRANGEBYSCORE', name, from, '-inf', 'WITHSCORES', 'LIMIT', skip, limit + 16)
  for i = 1, #page, 2 do
    local id, score = page[i], page[i + 1]
    local seen = A.after ~= '' and tonumber(score) == tonumber(A.score) and id >= A.after
    if not seen and #found < limit and redis.call('EXISTS', K('job', id)) == 1 then
      table.insert(found, {score, id, unpack(view(id))})
    end
  end
  if #page < 2 * (limit + 16) then break end
  skip = skip + limit + 16
end
return found
