// The Python face of the kernels: checks, drops the GIL, converts. Nothing else.

#include "binding.h"

NB_MODULE(_core, m) {
  gigl::BindRandom(m);
  gigl::BindAdjacency(m);
  gigl::BindBuckets(m);
  gigl::BindCacheIndex(m);
  gigl::BindChecksums(m);
  gigl::BindData(m);
  gigl::BindDisk(m);
  gigl::BindMappedFiles(m);
  gigl::BindRowCache(m);
  gigl::BindRows(m);
  gigl::BindSampling(m);
  gigl::BindPlacement(m);
  gigl::BindPositionLists(m);
  gigl::BindPpr(m);
  gigl::BindSharedSlots(m);
  gigl::BindSlots(m);
  gigl::BindStop(m);
  gigl::BindTextIndex(m);
}
