// A rank of an elastic job whose program sets its own job key: elastic_keyed KEY_FILE. In such a job the launcher's
// key is used, because the launcher creates the ids with which the ranks find each other.
#include <cstdio>

#include "tutti/tutti.h"

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  tutti::CommunicatorOptions options;
  options.job_key_file = argv[1];
  auto job = tutti::Elastic::join(options);
  if (!job.ok()) return 1;
  const auto restore = [](tutti::Communicator&, std::int32_t) { return tutti::Status(); };
  float sum = 0;
  while (job->next(1, restore)) {
    const float one = 1;
    job->done(job->communicator().all_reduce(&one, &sum, 1, tutti::DataType::kFloat32, tutti::ReduceOp::kSum));
  }
  if (!job->status().ok()) std::printf("%s\n", tutti::to_string(job->status().error()).c_str());
  std::printf("the sum is %g\n", static_cast<double>(sum));
  return job->status().ok() ? 0 : 1;
}
