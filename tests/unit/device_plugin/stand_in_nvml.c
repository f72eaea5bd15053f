/* A libnvidia-ml.so.1 without a GPU: it says what the file STAND_IN_NVML says, read at each call.
 *
 * A line for each GPU: UUID MIB MIG CODE. CODE is what each question about the GPU is answered with
 * (0: well, 15: it is lost, 999: no answer ever comes). A line "xid UUID NUMBER" is an error that is
 * reported once, by the first wait that finds it there. A line
 * "process UUID PID BYTES" is a process that uses memory (BYTES -1: how much is not told), a line
 * "limit UUID NAME BYTES USED" the limit of each cgroup with NAME in its path (BYTES -1: none). A GPU
 * has the slot 0000:INDEX+16:00.0.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SUCCESS = 0, NOT_SUPPORTED = 3, NOT_FOUND = 6, TOO_SMALL = 7, TIMEOUT = 10, HANG = 999 };
enum { MOST = 64 };

struct gpu { char uuid[80]; unsigned long long mib; int mig, code; };
struct memory { unsigned long long total, free, used; };
struct process { unsigned int pid; unsigned long long used; unsigned int gpu, compute; };
struct slot { char old[16]; unsigned int domain, bus, device, id, subsystem; char name[32]; };
struct limit { char *cgroup; unsigned long long soft, hard, used; };
struct event { void *device; unsigned long long type, data; unsigned int gpu, compute; };

/* Of each thread: the file is read anew while others look at what they have read. */
static __thread struct gpu gpus[MOST];
static __thread int count;
static __thread char xid_uuid[80];
static __thread unsigned long long xid;
static char reported[4096];

static void load(void) {
    char line[256];
    FILE *file = fopen(getenv("STAND_IN_NVML"), "r");
    count = 0;
    xid = 0;
    while (file && fgets(line, sizeof line, file)) {
        struct gpu *one = &gpus[count];
        if (sscanf(line, "xid %79s %llu", xid_uuid, &xid) == 2) continue;
        if (sscanf(line, "%79s %llu %d %d", one->uuid, &one->mib, &one->mig, &one->code) == 4
            && count < MOST - 1) count++;
    }
    if (file) fclose(file);
}

static int asked(void *handle, struct gpu **found) {
    load();
    *found = &gpus[(long)handle - 1];
    if ((long)handle > count) return NOT_FOUND;
    while ((*found)->code == HANG) { sleep(1); load(); }
    return (*found)->code;
}

int nvmlInitWithFlags(unsigned int flags) { (void)flags; return SUCCESS; }
int nvmlInit_v2(void) { return SUCCESS; }
int nvmlShutdown(void) { return SUCCESS; }
const char *nvmlErrorString(int code) { return code == 15 ? "GPU is lost" : "an error"; }

int nvmlSystemGetDriverVersion(char *text, unsigned int size) {
    const char *version = getenv("STAND_IN_DRIVER");
    snprintf(text, size, "%s", version ? version : "615.10.01");
    return SUCCESS;
}

int nvmlDeviceGetCount_v2(unsigned int *found) { load(); *found = count; return SUCCESS; }

int nvmlDeviceGetHandleByIndex_v2(unsigned int index, void **handle) {
    load();
    *handle = (void *)(long)(index + 1);
    return index < (unsigned)count ? SUCCESS : NOT_FOUND;
}

int nvmlDeviceGetUUID(void *handle, char *text, unsigned int size) {
    struct gpu *one;
    load();
    one = &gpus[(long)handle - 1];
    /* A GPU that hangs still has its name: the library keeps it. */
    if ((long)handle > count) return NOT_FOUND;
    snprintf(text, size, "%s", one->uuid);
    return SUCCESS;
}

int nvmlDeviceGetName(void *handle, char *text, unsigned int size) {
    struct gpu *one;
    int code = asked(handle, &one);
    snprintf(text, size, "Stand-in");
    return code;
}

int nvmlDeviceGetMemoryInfo(void *handle, struct memory *info) {
    struct gpu *one;
    int code = asked(handle, &one);
    info->total = one->mib << 20;
    info->free = info->total;
    info->used = 0;
    return code;
}

int nvmlDeviceGetMigMode(void *handle, unsigned int *now, unsigned int *later) {
    struct gpu *one;
    int code = asked(handle, &one);
    *now = *later = one->mig == 1;
    return one->mig < 0 ? NOT_SUPPORTED : code;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, void **handle) {
    int index;
    load();
    for (index = 0; index < count; index++) {
        *handle = (void *)(long)(index + 1);
        if (strcmp(gpus[index].uuid, uuid) == 0) return SUCCESS;
    }
    return NOT_FOUND;
}

int nvmlDeviceGetPciInfo_v3(void *handle, struct slot *slot) {
    struct gpu *one;
    int code = asked(handle, &one);
    memset(slot, 0, sizeof *slot);
    snprintf(slot->name, sizeof slot->name, "00000000:%02lX:00.0", (long)handle + 15);
    return code;
}

int nvmlDeviceGetComputeRunningProcesses_v3(void *handle, unsigned int *found,
                                            struct process *processes) {
    struct gpu *one;
    char line[256], uuid[80];
    struct process each = {0, 0, -1, -1};
    unsigned int room = processes ? *found : 0;
    long long used;
    int code = asked(handle, &one);
    FILE *file = fopen(getenv("STAND_IN_NVML"), "r");
    *found = 0;
    while (file && fgets(line, sizeof line, file)) {
        if (sscanf(line, "process %79s %u %lld", uuid, &each.pid, &used) != 3) continue;
        if (strcmp(uuid, one->uuid) != 0) continue;
        each.used = used;
        if (*found < room) processes[*found] = each;
        ++*found;
    }
    if (file) fclose(file);
    return code ? code : *found > room ? TOO_SMALL : SUCCESS;
}

int nvmlDeviceGetMemoryLimits_v1(void *handle, struct limit *limit) {
    struct gpu *one;
    char line[256], uuid[80], name[80];
    long long hard, used;
    int code = asked(handle, &one), known = 0;
    FILE *file = fopen(getenv("STAND_IN_NVML"), "r");
    while (file && fgets(line, sizeof line, file)) {
        if (sscanf(line, "limit %79s %79s %lld %lld", uuid, name, &hard, &used) != 4) continue;
        if (strcmp(uuid, one->uuid) != 0 || !strstr(limit->cgroup, name)) continue;
        limit->hard = hard;
        limit->used = used;
        known = 1;
    }
    if (file) fclose(file);
    return code ? code : known ? SUCCESS : NOT_FOUND;
}

int nvmlEventSetCreate(void **set) { *set = (void *)1L; return SUCCESS; }
int nvmlEventSetFree(void *set) { (void)set; return SUCCESS; }

int nvmlDeviceGetSupportedEventTypes(void *handle, unsigned long long *types) {
    (void)handle;
    *types = 8;
    return SUCCESS;
}

int nvmlDeviceRegisterEvents(void *handle, unsigned long long types, void *set) {
    (void)handle; (void)set;
    return types == 8 ? SUCCESS : NOT_SUPPORTED;
}

int nvmlEventSetWait_v2(void *set, struct event *data, unsigned int milliseconds) {
    unsigned int waited;
    (void)set;
    for (waited = 0; waited <= milliseconds; waited += 50) {
        char name[128];
        int index;
        load();
        snprintf(name, sizeof name, "%s=%llu;", xid_uuid, xid);
        if (xid && !strstr(reported, name)) {
            strncat(reported, name, sizeof reported - strlen(reported) - 1);
            for (index = 0; index < count; index++) {
                if (strcmp(gpus[index].uuid, xid_uuid) == 0) {
                    memset(data, 0, sizeof *data);
                    data->device = (void *)(long)(index + 1);
                    data->type = 8;
                    data->data = xid;
                    return SUCCESS;
                }
            }
        }
        usleep(50000);
    }
    return TIMEOUT;
}
