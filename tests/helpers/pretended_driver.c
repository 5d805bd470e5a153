/* Pretends to be CUDA's driver and NVML, as the environment says: PRETEND_GPUS, PRETEND_NVML (what
   NVML counts), PRETEND_NAME, PRETEND_CUDA (version times 1,000), PRETEND_STATUS (what cuInit
   answers). A line with the process id in the file PRETEND_LOG is a call of cuInit. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int started;

static int number(const char *name, int otherwise) {
    const char *text = getenv(name);
    return text ? atoi(text) : otherwise;
}

int cuInit(unsigned flags) {
    FILE *log = fopen(getenv("PRETEND_LOG"), "a");
    fprintf(log, "%d\n", getpid());
    fclose(log);
    started = number("PRETEND_STATUS", 0) == 0;
    return number("PRETEND_STATUS", 0);
}

int cuDeviceGetCount(int *count) {
    *count = number("PRETEND_GPUS", 0);
    return started ? 0 : 3;
}

int cuDeviceGet(int *device, int index) { *device = index; return 0; }
int cuDriverGetVersion(int *version) { *version = number("PRETEND_CUDA", 13000); return 0; }

int cuDeviceGetName(char *name, int length, int device) {
    strncpy(name, getenv("PRETEND_NAME"), length);
    return 0;
}

int cuGetErrorString(int status, const char **words) {
    *words = status == 802 ? "system not yet initialized" : "another error";
    return 0;
}

int nvmlInit(void) { return 0; }

int nvmlDeviceGetCount_v2(int *count) {
    *count = number("PRETEND_NVML", number("PRETEND_GPUS", 0));
    return 0;
}
