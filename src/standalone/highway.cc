// What kernels/cpu needs of Highway at run time, for our shared libraries: they are to load where Highway's own library
// is not installed. Both functions are called from any thread.
#include <hwy/targets.h>

#include "kernels/cpu/targets.h"

namespace hwy {

int64_t SupportedTargets() { return tutti::kernels::supported_targets(); }

// Highway's mutable choice of this process; a global, as that is how its functions hand it on.
ChosenTarget& GetChosenTarget() {
  static ChosenTarget chosen;
  return chosen;
}

}  // namespace hwy
