-- One job as the contract shows it.
-- A: job
-- returns: view… or nothing
if redis.call('EXISTS', K('job', A.job)) == 0 then return {} end
return view(A.job)
