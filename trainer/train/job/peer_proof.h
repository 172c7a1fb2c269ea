// Ranks that prove to each other that they know the job's secret, before anything else is sent.
//
// Whoever reaches the store can put an address of his own in a rank's place, and so become the other end of its peers'
// connections. So each pair of ranks tells each other a number that nobody can foretell, over the connections on which
// their tensors travel later (of the CPU's and of a GPU's, where the group has both), and answers with the
// HMAC-SHA-256, by the secret, of both numbers, both ranks, all ranks of the group and the job's name: who does not
// know the secret cannot, and an answer from elsewhere or before is none. So do the ranks of each group that is split
// off theirs later, which has connections of its own. What travels after that is not protected: who is on the wire can
// still read and change it.
#pragma once

#include <narrowcast/process_group.h>
#include <narrowcast/worker_env.h>
#include "trainer/base/program/job_secret.h"

namespace narrowcast::job {

// A collective. Without a secret (program::kSecretVariable) on any rank it does nothing; with one on some ranks alone
// it throws c10::ValueError on all. Throws c10::ValueError for a file that holds none, and c10::DistBackendError naming
// the first rank that proves nothing. From then on ranks prove themselves in each group that is split off `group`, too,
// and the errors are those of who splits it.
void prove_to_peers(const ProcessGroupPtr& group, const EnvironmentVariables& environment);

}  // namespace narrowcast::job
