-- Store a job, count it, put it in its user's line, tell the world: all or nothing.
-- A repeat by nature: the caller made the job's id, so a record under it is its own earlier try.
-- A: job, user, kind, input (JSON), quota, idem ('' none), fingerprint, status (to enter), deadline_ms,
--    expires_ms ('' none; from now), blob ('' none); from `rest` on: name, value … of the other fields of the record
-- returns: word, jobs in flight, view… (of a new job as its first event shows it); word: new, replay,
--    reused (the key came with another body), full
local set = K('inflight', A.user)
if redis.call('EXISTS', K('job', A.job)) == 1 then
  return {'new', redis.call('SCARD', set), unpack(view(A.job))}
end
if A.idem ~= '' then
  local known = redis.call('GET', K('idem', A.idem))
  local print = known and redis.call('HGET', K('job', known), 'fingerprint')
  if print and print ~= A.fingerprint then return {'reused', 0} end
  if print then return {'replay', redis.call('SCARD', set), unpack(view(known))} end
end
local left, in_flight = quota_left(A.user, tonumber(A.quota))
if not left then return {'full', in_flight} end

local job = setmetatable({id = A.job, key = K('job', A.job), entry = A.job .. ':1', queue = K('queue', A.kind),
  kind = A.kind, user = A.user, scopes = {'*', '=' .. A.user}, created = now, seq = 0,
  deadline = A.deadline_ms ~= '' and now + A.deadline_ms or nil,
  expires = A.expires_ms ~= '' and now + A.expires_ms or nil}, JOB)
if A.idem ~= '' then redis.call('SET', K('idem', A.idem), A.job) end
redis.call('SET', K('input', A.job), A.input)
if A.blob ~= '' then redis.call('SET', K('blob', A.job), A.blob) end
redis.call('SADD', set, A.job)
for _, name in ipairs(indexes(job.scopes, '*', job.kind)) do redis.call('ZADD', name, now, job.id) end
line_up(job, now)
local shown = enter(job, A.status, nil, {'kind', A.kind, 'user', A.user, 'life', 1, 'run', 0, 'created', now,
  'created_at', iso(now), 'finished_at', 'null', 'idem', A.idem, 'fingerprint', A.fingerprint,
  'deadline_ms', A.deadline_ms, 'deadline', job.deadline, 'expires', job.expires, unpack(args, rest)})
return {'new', in_flight + 1, shown, A.status, A.user, '1'}
