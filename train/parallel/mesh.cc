#include "train/parallel/mesh.h"

namespace tutti::train {
namespace {

Comm whole(Communicator* job, CommTime& time) { return job == nullptr ? Comm(time) : Comm(*job, time); }

// Splits `of` if the parallel dimension is used. Otherwise each rank is a group of its own, which needs no
// communicator.
Comm part(Comm& of, bool needed, std::int32_t colour, const char* name, CommTime& time) {
  return needed ? of.split(colour, name) : Comm(time);
}

}  // namespace

Mesh::Mesh(Communicator* job, const TrainOptions& options)
    : world(whole(job, time)),
      data(options.tensor * options.pipeline == 1
               ? whole(job, time)
               : part(world, world.size() > options.tensor * options.pipeline,
                      world.rank() % (options.tensor * options.pipeline), "data-parallel", time)),
      tensor(part(world, options.tensor > 1, world.rank() / options.tensor, "tensor-parallel", time)),
      pipe(part(world, options.pipeline > 1,
                world.rank() / (options.tensor * options.pipeline) * options.tensor + world.rank() % options.tensor,
                "pipeline's", time)),
      group(part(data, options.group > 0, options.group > 0 ? data.rank() / options.group : 0, "group's", time)),
      across(part(data, options.group > 0, options.group > 0 ? data.rank() % options.group : 0, "across-group", time)) {
  if (const auto algorithm = parse_algorithm(options.algorithm)) data.use_algorithm(*algorithm);
}

void Mesh::abort() {
  for (Comm* comm : {&world, &data, &tensor, &pipe, &group, &across}) comm->abort();
}

}  // namespace tutti::train
