-- A person begins a new life of a final job; what a rule may do for it is counted anew.
-- A: job, quota, from (set of statuses), status (to enter), input (JSON, '' unchanged)
-- returns: word, jobs in flight; word: ok, none, wrong (its status) or full (the quota)
local job = load(A.job)
if not job then return {'none', 0} end
if not among(A.from, job.status) then return {'wrong', 0} end
local left, in_flight = quota_left(job.user, tonumber(A.quota))
if not left then return {'full', in_flight} end
redis.call('HSET', job.key, 'ruled', 0)
redis.call('ZREM', K('rules'), job.id)
if A.input ~= '' then
  redis.call('SET', K('input', job.id), A.input)
  redis.call('HSET', job.key, 'edited', 1)
end
revive(job, A.status, now)
return {'ok', in_flight + 1}
