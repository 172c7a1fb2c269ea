// Ranks prove to each other that they know the job's secret, before anything else is sent.
//
// An attacker with access to the store can write their own address in a rank's place, and so become the other end of
// its peers' connections. Therefore each pair of ranks exchanges unpredictable numbers over the connections of their
// later tensors (the CPU's and a GPU's, if the group has both).
//
// Each rank answers with an HMAC-SHA-256, keyed with the secret, of both numbers, both ranks, all ranks of the group
// and the job's name. An attacker without the secret cannot compute it, and a replayed or relayed answer does not
// match. Each group that is split off later has separate connections, and its ranks prove themselves in the same way.
//
// Later traffic is not protected: an attacker on the wire can still read and change it.
#pragma once

#include <narrowcast/process_group.h>
#include <narrowcast/worker_env.h>
#include "trainer/base/program/job_secret.h"

namespace narrowcast::job {

// A collective. Without a secret (program::kSecretVariable) on any rank it does nothing. With a secret on only some
// ranks it throws c10::ValueError on all. Throws c10::ValueError for a file without a secret, and c10::DistBackendError
// naming the first rank without a valid proof. From then on, splitting a group off `group` includes the same proof, and
// throws its errors.
void prove_to_peers(const ProcessGroupPtr& group, const EnvironmentVariables& environment);

}  // namespace narrowcast::job
