-- One page of an index, newest first. A member whose job is gone (pruning is behind) or
-- damaged is passed over. With a kind and a status the smaller of their indexes is read, and those of its
-- members are passed over that the other one lacks.
-- A: kind, status, scope (`*` for all each), limit, bytes (a page of large jobs ends behind so many),
--    score, after ('' from the newest: where the last page ended)
-- returns: where the next page goes on: score, id ('' both: there is none), then the view of each job
local MOST = 2000 -- members looked at in one call: a longer walk would hold up everybody
local name, other = K('index', A.kind, '*', A.scope), nil
if A.status ~= '*' then
  name, other = K('index', '*', A.status, A.scope), A.kind ~= '*' and name
  if other and redis.call('ZCARD', other) < redis.call('ZCARD', name) then name, other = other, name end
end
local limit, room = tonumber(A.limit), tonumber(A.bytes)
local found, from, skip, seen = {'', ''}, A.score ~= '' and A.score or '+inf', 0, 0
while true do
  local page = redis.call('ZREVRANGEBYSCORE', name, from, '-inf', 'WITHSCORES', 'LIMIT', skip, limit + 16)
  for i = 1, #page, 2 do
    local id, score = page[i], page[i + 1]
    if not (A.after ~= '' and tonumber(score) == tonumber(A.score) and id >= A.after) then
      local wanted = redis.call('EXISTS', K('job', id)) == 1 and (not other or redis.call('ZSCORE', other, id))
      if seen == MOST or wanted and (#found == limit + 2 or room <= 0) then return found end
      seen, found[1], found[2] = seen + 1, score, id
      if wanted then
        local fine, shown = pcall(view, id)
        if fine then
          room = room - #shown[1]
          table.insert(found, shown)
        end
      end
    end
  end
  if #page < 2 * (limit + 16) then
    found[1], found[2] = '', ''
    return found
  end
  skip = skip + limit + 16
end
