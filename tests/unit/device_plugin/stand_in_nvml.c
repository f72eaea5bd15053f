/* A libnvidia-ml.so.1 without a GPU: it says what the file STAND_IN_NVML says, read at each call.
 *
 * A line for each GPU: UUID MIB MIG CODE. CODE is what each question about the GPU is answered with
 * (0: well, 15: it is lost, 9999: no answer ever comes). While a GPU is lost, a wait for events of a
 * set that it is registered in answers that at once, as a real driver does. A GPU has the slot
 * 0000:INDEX+16:00.0. Further lines:
 *
 *     xid UUID NUMBER [TEXT]     an error, reported once, by the first wait that finds it there
 *     instance UUID PARENT MIB   a MIG instance, after the line of its GPU
 *     process UUID PID BYTES     a process that uses memory (BYTES -1: how much is not told)
 *     sm UUID PID PERCENT AGE    a sample of the SMs, AGE seconds old (without one: not supported)
 *     limit UUID NAME BYTES USED the limit of each cgroup with NAME in its path (BYTES -1: none)
 *     reserved UUID MIB          what the driver keeps of the memory (without it: not supported)
 *     recovery UUID ACTION       the recovery action (without it: not supported)
 *     remaps UUID PENDING FAILED the row remapper's state (without it: not supported)
 *     fabric UUID STATE STATUS   its NVLink fabric (without it: not supported)
 *     answer FUNCTION CODE UUID  what that function answers of that GPU; UUID *: of all, and of none
 *     loads N                    how often the driver was loaded: a library that was initialized
 *                                before answers that it is not; N 0: no driver is loaded
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum {
    SUCCESS = 0, UNINITIALIZED = 1, NOT_SUPPORTED = 3, NOT_FOUND = 6, TOO_SMALL = 7,
    DRIVER_NOT_LOADED = 9, TIMEOUT = 10, LOST = 15, HANG = 9999
};
enum { MOST = 64, MOST_LINES = 4096, XID_EVENT = 8, RECOVERY_ACTION = 230 };

struct gpu { char uuid[80]; unsigned long long mib; int mig, code; long parent; };
struct memory { unsigned long long total, free, used; };
struct memory2 { unsigned int version; unsigned long long total, reserved, free, used; };
struct utilization {
    unsigned int pid; unsigned long long stamp; unsigned int sm, memory, encoder, decoder;
};
struct process { unsigned int pid; unsigned long long used; unsigned int gpu, compute; };
struct slot { char old[16]; unsigned int domain, bus, device, id, subsystem; char name[32]; };
struct limit { char *cgroup; unsigned long long soft, hard, used; };
struct fabric { unsigned char cluster[16]; int status; unsigned int clique, state; };
struct fabric2 { unsigned int version; struct fabric of; unsigned int health; };
struct event { void *device; unsigned long long type, data; unsigned int gpu, compute; };
struct field {
    unsigned int id, scope; long long when, latency; int type, answer;
    union { unsigned int number; unsigned long long large; } value;
};
struct set { char uuids[MOST][80]; int count; };

/* Of each thread: the file is read anew while others look at what they have read. */
static __thread struct gpu gpus[2 * MOST];  /* instances from MOST on */
static __thread int count, instances;
static __thread int loads;
static __thread char text[65536], *lines[MOST_LINES + 1];
static __thread struct stat known;
static int initialized;
static char reported[65536];

/* Return what follows the word that a line begins with; NULL if it begins with another. */
static const char *after(const char *line, const char *word) {
    size_t length = strlen(word);
    return strncmp(line, word, length) == 0 && line[length] == ' ' ? line + length : NULL;
}

/* Read the file, if it is another one than before: it is only ever replaced. */
static void load(void) {
    const char *path = getenv("STAND_IN_NVML");
    char **line = lines, *rest = text;
    struct stat now;
    FILE *file;
    if (stat(path, &now) == 0 && now.st_ino == known.st_ino && now.st_size == known.st_size
        && now.st_mtim.tv_sec == known.st_mtim.tv_sec
        && now.st_mtim.tv_nsec == known.st_mtim.tv_nsec) return;
    file = fopen(path, "r");
    if (!file || fstat(fileno(file), &known)) abort();
    text[fread(text, 1, sizeof text - 1, file)] = 0;
    fclose(file);
    count = instances = 0;
    loads = 1;
    while ((*line = strsep(&rest, "\n")))
        if (++line == lines + MOST_LINES) abort();
    for (line = lines; *line; line++) {
        struct gpu *one = &gpus[count];
        if (sscanf(*line, "loads %d", &loads) == 1) continue;
        if (after(*line, "instance")) {
            struct gpu *own = &gpus[MOST + instances];
            char parent[80];
            int each;
            if (sscanf(*line, "instance %79s %79s %llu", own->uuid, parent, &own->mib) != 3) abort();
            own->mig = -1;
            own->code = 0;
            for (each = 0; each < count; each++)
                if (strcmp(gpus[each].uuid, parent) == 0) own->parent = each + 1;
            if (instances < MOST - 1) instances++;
            continue;
        }
        if (after(*line, "xid") || after(*line, "limit") || after(*line, "answer")) continue;
        if (sscanf(*line, "%79s %llu %d %d", one->uuid, &one->mib, &one->mig, &one->code) == 4
            && count < MOST - 1) count++;
    }
}

/* What a function answers, as the file was last read, that is not its own business: of a GPU. */
static int told(const char *function, const char *uuid) {
    char **line, name[80], whom[80];
    int code, found = SUCCESS;
    if (loads != initialized && strncmp(function, "nvmlInit", 8) != 0) return UNINITIALIZED;
    for (line = lines; *line; line++) {
        const char *words = after(*line, "answer");
        if (!words || sscanf(words, "%79s %d %79s", name, &code, whom) != 3) continue;
        if (strcmp(name, function) != 0) continue;
        if (strcmp(whom, "*") == 0 || strcmp(whom, uuid) == 0) found = code;
    }
    return found;
}

/* The same of a GPU, or of none, as the file is now. */
static int says(const char *function, const char *uuid) {
    load();
    return told(function, uuid);
}

static int is_there(void *handle) {
    return (long)handle <= count || ((long)handle > MOST && (long)handle <= MOST + instances);
}

static int asked(const char *function, void *handle, struct gpu **found) {
    int code;
    load();
    *found = &gpus[(long)handle - 1];
    if (!is_there(handle)) return loads == initialized ? NOT_FOUND : UNINITIALIZED;
    code = told(function, (*found)->uuid);
    while ((*found)->code == HANG) { sleep(1); load(); }
    return code ? code : (*found)->code;
}

/* Read "KIND UUID ONE OTHER"; return how many numbers are there. */
static int line_of(const char *kind, const char *uuid, long *one, long *other) {
    char **line, whom[80];
    for (line = lines; *line; line++) {
        const char *words = after(*line, kind);
        int read = words ? sscanf(words, "%79s %ld %ld", whom, one, other) : 0;
        if (read >= 2 && strcmp(whom, uuid) == 0) return read - 1;
    }
    return 0;
}

int nvmlInitWithFlags(unsigned int flags) {
    int code = says("nvmlInitWithFlags", "");
    (void)flags;
    if (code || !loads) return code ? code : DRIVER_NOT_LOADED;
    initialized = loads;
    return SUCCESS;
}

int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }

int nvmlShutdown(void) {
    int code = says("nvmlShutdown", "");
    if (!code) initialized = reported[0] = 0;
    return code;
}

const char *nvmlErrorString(int code) { return code == LOST ? "GPU is lost" : "an error"; }

int nvmlSystemGetDriverVersion(char *text, unsigned int size) {
    const char *version = getenv("STAND_IN_DRIVER");
    snprintf(text, size, "%s", version ? version : "615.10.01");
    return says("nvmlSystemGetDriverVersion", "");
}

int nvmlDeviceGetCount_v2(unsigned int *found) {
    int code = says("nvmlDeviceGetCount_v2", "");
    *found = count;
    return code;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned int index, void **handle) {
    load();
    *handle = (void *)(long)(index + 1);
    return index < (unsigned)count
        ? told("nvmlDeviceGetHandleByIndex_v2", gpus[index].uuid) : NOT_FOUND;
}

int nvmlDeviceGetUUID(void *handle, char *text, unsigned int size) {
    struct gpu *one;
    load();
    one = &gpus[(long)handle - 1];
    /* A GPU that is lost or hangs still has its name: the library keeps it. */
    if (!is_there(handle)) return NOT_FOUND;
    snprintf(text, size, "%s", one->uuid);
    return told("nvmlDeviceGetUUID", one->uuid);
}

int nvmlDeviceGetName(void *handle, char *text, unsigned int size) {
    struct gpu *one;
    int code = asked("nvmlDeviceGetName", handle, &one);
    snprintf(text, size, (long)handle > MOST ? "Stand-in MIG 1g.%lldgb" : "Stand-in",
             (long long)(one->mib + 1023) >> 10);
    return code;
}

int nvmlDeviceGetMinorNumber(void *handle, unsigned int *minor) {
    struct gpu *one;
    *minor = (long)handle - 1;
    return asked("nvmlDeviceGetMinorNumber", handle, &one);
}

int nvmlDeviceGetMemoryInfo(void *handle, struct memory *info) {
    struct gpu *one;
    int code = asked("nvmlDeviceGetMemoryInfo", handle, &one);
    info->total = one->mib << 20;
    info->free = info->total;
    info->used = 0;
    return code;
}

int nvmlDeviceGetMemoryInfo_v2(void *handle, struct memory2 *info) {
    struct gpu *one;
    long reserved = 0, none;
    int code = asked("nvmlDeviceGetMemoryInfo_v2", handle, &one);
    if (!code && !line_of("reserved", one->uuid, &reserved, &none)) code = NOT_SUPPORTED;
    info->total = one->mib << 20;
    info->reserved = info->used = (unsigned long long)reserved << 20;
    info->free = info->total - info->reserved;
    return code;
}

int nvmlDeviceGetMigMode(void *handle, unsigned int *now, unsigned int *later) {
    struct gpu *one;
    int code = asked("nvmlDeviceGetMigMode", handle, &one);
    *now = *later = one->mig == 1;
    return code ? code : one->mig < 0 ? NOT_SUPPORTED : SUCCESS;
}

int nvmlDeviceGetMaxMigDeviceCount(void *handle, unsigned int *most) {
    struct gpu *one;
    *most = 7;
    return asked("nvmlDeviceGetMaxMigDeviceCount", handle, &one);
}

int nvmlDeviceGetMigDeviceHandleByIndex(void *handle, unsigned int index, void **instance) {
    struct gpu *one;
    int each, code = asked("nvmlDeviceGetMigDeviceHandleByIndex", handle, &one);
    for (each = 0; !code && each < instances; each++) {
        *instance = (void *)(long)(MOST + each + 1);
        if (gpus[MOST + each].parent == (long)handle && index-- == 0) return SUCCESS;
    }
    return code ? code : NOT_FOUND;
}

int nvmlDeviceGetIndex(void *handle, unsigned int *index) {
    *index = (long)handle - 1;
    return SUCCESS;
}

/* For NVIDIA's container toolkit: no GPU here is a part of another. */
int nvmlDeviceIsMigDeviceHandle(void *handle, unsigned int *is_part) {
    (void)handle;
    *is_part = 0;
    return SUCCESS;
}

int nvmlDeviceGetFieldValues(void *handle, int wanted, struct field *fields) {
    struct gpu *one;
    long action = 0, none;
    int each, code = asked("nvmlDeviceGetFieldValues", handle, &one);
    for (each = 0; !code && each < wanted; each++) {
        int known = fields[each].id == RECOVERY_ACTION
            && line_of("recovery", one->uuid, &action, &none);
        fields[each].type = 1;
        fields[each].value.number = action;
        fields[each].answer = known ? told("field", one->uuid) : NOT_SUPPORTED;
    }
    return code;
}

int nvmlDeviceGetRemappedRows(void *handle, unsigned int *corrected, unsigned int *uncorrected,
                              unsigned int *pending, unsigned int *failed) {
    struct gpu *one;
    long waits = 0, lacks = 0;
    int code = asked("nvmlDeviceGetRemappedRows", handle, &one);
    if (!code && line_of("remaps", one->uuid, &waits, &lacks) < 2) code = NOT_SUPPORTED;
    *corrected = *uncorrected = 0;
    *pending = waits;
    *failed = lacks;
    return code;
}

static int fabric_of(const char *function, void *handle, struct fabric *fabric) {
    struct gpu *one;
    long state = 0, status = 0;
    int code = asked(function, handle, &one);
    if (!code && line_of("fabric", one->uuid, &state, &status) < 2) code = NOT_SUPPORTED;
    fabric->state = state;
    fabric->status = status;
    return code;
}

int nvmlDeviceGetGpuFabricInfo(void *handle, struct fabric *fabric) {
    return fabric_of("nvmlDeviceGetGpuFabricInfo", handle, fabric);
}

int nvmlDeviceGetGpuFabricInfoV(void *handle, struct fabric2 *fabric) {
    return fabric_of("nvmlDeviceGetGpuFabricInfoV", handle, &fabric->of);
}

int nvmlDeviceGetHandleByUUID(const char *uuid, void **handle) {
    int index, code = says("nvmlDeviceGetHandleByUUID", uuid);
    for (index = 0; !code && index < count; index++) {
        *handle = (void *)(long)(index + 1);
        if (strcmp(gpus[index].uuid, uuid) == 0) return SUCCESS;
    }
    for (index = 0; !code && index < instances; index++) {
        *handle = (void *)(long)(MOST + index + 1);
        if (strcmp(gpus[MOST + index].uuid, uuid) == 0) return SUCCESS;
    }
    return code ? code : NOT_FOUND;
}

int nvmlDeviceGetPciInfo_v3(void *handle, struct slot *slot) {
    struct gpu *one;
    int code = asked("nvmlDeviceGetPciInfo_v3", handle, &one);
    memset(slot, 0, sizeof *slot);
    snprintf(slot->name, sizeof slot->name, "00000000:%02lX:00.0", (long)handle + 15);
    return code;
}

int nvmlDeviceGetComputeRunningProcesses_v3(void *handle, unsigned int *found,
                                            struct process *processes) {
    struct gpu *one;
    char **line, uuid[80];
    struct process each = {0, 0, -1, -1};
    unsigned int room = processes ? *found : 0;
    long long used;
    int code = asked("nvmlDeviceGetComputeRunningProcesses_v3", handle, &one);
    *found = 0;
    for (line = lines; *line; line++) {
        if (sscanf(*line, "process %79s %u %lld", uuid, &each.pid, &used) != 3) continue;
        if (strcmp(uuid, one->uuid) != 0) continue;
        each.used = used;
        if (*found < room) processes[*found] = each;
        ++*found;
    }
    return code ? code : *found > room ? TOO_SMALL : SUCCESS;
}

int nvmlDeviceGetProcessUtilization(void *handle, struct utilization *samples, unsigned int *found,
                                    unsigned long long since) {
    struct gpu *one;
    char **line, uuid[80];
    unsigned int room = samples ? *found : 0;
    int code = asked("nvmlDeviceGetProcessUtilization", handle, &one), tells = 0;
    *found = 0;
    for (line = lines; *line; line++) {
        struct utilization each = {0};
        long age;
        if (sscanf(*line, "sm %79s %u %u %ld", uuid, &each.pid, &each.sm, &age) != 4) continue;
        if (strcmp(uuid, one->uuid) != 0) continue;
        tells = 1;
        each.stamp = ((unsigned long long)time(NULL) - age) * 1000000ull;
        if (each.stamp < since) continue;
        if (*found < room) samples[*found] = each;
        ++*found;
    }
    if (code || !tells) return code ? code : NOT_SUPPORTED;
    return *found == 0 ? NOT_FOUND : *found > room ? TOO_SMALL : SUCCESS;
}

int nvmlDeviceGetMemoryLimits_v1(void *handle, struct limit *limit) {
    struct gpu *one;
    char **line, uuid[80], name[80];
    long long hard, used;
    int code = asked("nvmlDeviceGetMemoryLimits_v1", handle, &one), known = 0;
    for (line = lines; *line; line++) {
        if (sscanf(*line, "limit %79s %79s %lld %lld", uuid, name, &hard, &used) != 4) continue;
        if (strcmp(uuid, one->uuid) != 0 || !strstr(limit->cgroup, name)) continue;
        limit->hard = hard;
        limit->used = used;
        known = 1;
    }
    return code ? code : known ? SUCCESS : NOT_FOUND;
}

int nvmlEventSetCreate(void **set) {
    *set = calloc(1, sizeof(struct set));
    return says("nvmlEventSetCreate", "");
}

int nvmlEventSetFree(void *set) {
    int code = says("nvmlEventSetFree", "");
    if (!code) free(set);
    return code;
}

int nvmlDeviceGetSupportedEventTypes(void *handle, unsigned long long *types) {
    struct gpu *one;
    load();
    one = &gpus[(long)handle - 1];
    *types = XID_EVENT;
    return (long)handle > count ? NOT_FOUND : told("nvmlDeviceGetSupportedEventTypes", one->uuid);
}

int nvmlDeviceRegisterEvents(void *handle, unsigned long long types, void *events) {
    struct set *set = events;
    struct gpu *one;
    int code;
    load();
    one = &gpus[(long)handle - 1];
    if ((long)handle > count) return NOT_FOUND;
    code = told("nvmlDeviceRegisterEvents", one->uuid);
    if (!code && types != XID_EVENT) code = NOT_SUPPORTED;
    if (!code && set->count < MOST) strcpy(set->uuids[set->count++], one->uuid);
    return code;
}

/* Return 0 and the event if there is an error of the set's GPUs that was not reported yet. */
static int next_xid(const struct set *set, struct event *data) {
    char **line, uuid[80], once[260];
    unsigned long long number;
    int index, one, code = TIMEOUT;
    for (line = lines; code && *line; line++) {
        const char *words = after(*line, "xid");
        if (!words || sscanf(words, "%79s %llu", uuid, &number) != 2) continue;
        snprintf(once, sizeof once, "%s\n", *line);
        if (strstr(reported, once)) continue;
        for (index = 0; index < set->count; index++) {
            if (strcmp(set->uuids[index], uuid) != 0) continue;
            strncat(reported, once, sizeof reported - strlen(reported) - 1);
            memset(data, 0, sizeof *data);
            for (one = 0; one < count; one++)
                if (strcmp(gpus[one].uuid, uuid) == 0) data->device = (void *)(long)(one + 1);
            data->type = XID_EVENT;
            data->data = number;
            code = SUCCESS;
        }
    }
    return code;
}

int nvmlEventSetWait_v2(void *events, struct event *data, unsigned int milliseconds) {
    const struct set *set = events;
    unsigned int waited;
    for (waited = 0;; waited += 50) {
        int index, one, code = TIMEOUT;
        load();
        for (index = 0; index < set->count; index++) {
            int other = told("nvmlEventSetWait_v2", set->uuids[index]);
            if (other) code = other;
            for (one = 0; one < count; one++)
                if (gpus[one].code == LOST && strcmp(set->uuids[index], gpus[one].uuid) == 0)
                    code = LOST;
        }
        if (code == TIMEOUT) code = next_xid(set, data);
        if (code != TIMEOUT || waited >= milliseconds) return code;
        usleep(50000);
    }
}
