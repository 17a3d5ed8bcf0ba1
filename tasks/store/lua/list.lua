-- One page of an index, newest first. A member whose job is gone (pruning is behind) or
-- damaged is passed over.
-- A: kind, status, scope (`*` for all each), limit, bytes (a page of large jobs ends behind so many),
--    score, after ('' from the newest: the last one seen)
-- returns: more ('1' where another job follows), then for each job: score, id, view…
local name, limit = K('index', A.kind, A.status, A.scope), tonumber(A.limit)
local found, from, skip, room = {'0'}, A.score ~= '' and A.score or '+inf', 0, tonumber(A.bytes)
while true do
  local page = redis.call('ZREVRANGEBYSCORE', name, from, '-inf', 'WITHSCORES', 'LIMIT', skip, limit + 16)
  for i = 1, #page, 2 do
    local id, score = page[i], page[i + 1]
    local seen = A.after ~= '' and tonumber(score) == tonumber(A.score) and id >= A.after
    if not seen and redis.call('EXISTS', K('job', id)) == 1 then
      if #found > limit or room <= 0 then
        found[1] = '1'
        return found
      end
      local fine, shown = pcall(view, id)
      if fine then
        room = room - #shown[1]
        table.insert(found, {score, id, unpack(shown)})
      end
    end
  end
  if #page < 2 * (limit + 16) then return found end
  skip = skip + limit + 16
end
