// The two functions of the Highway library that kernels/cpu needs at run time. They are compiled into Tutti's shared
// libraries, so that these can be loaded on machines without Highway. Both functions may be called from any thread.
#include <hwy/targets.h>

#include "kernels/cpu/targets.h"

namespace hwy {

int64_t SupportedTargets() { return tutti::kernels::supported_targets(); }

// The instruction set that Highway has chosen. Highway's own functions access it through this function. It is a static
// variable of the shared library, because there is no object that could hold it.
ChosenTarget& GetChosenTarget() {
  static ChosenTarget chosen;
  return chosen;
}

}  // namespace hwy
