// Prints the devices that the allocator of kube-scheduler takes on each node of given clusters.
//
// Reads one cluster a line from standard input, as JSON: nodes, slices, classes, rules (taint
// rules), claims (to allocate, in order) and allocated (claims that hold devices). Writes one line
// for each: by node the results of each claim, null if they do not fit, or the text of an error.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"
)

type cluster struct {
	Nodes     []*corev1.Node                 `json:"nodes"`
	Slices    []*resourceapi.ResourceSlice   `json:"slices"`
	Classes   []*resourceapi.DeviceClass     `json:"classes"`
	Rules     []*resourceapi.DeviceTaintRule `json:"rules"`
	Claims    []*resourceapi.ResourceClaim   `json:"claims"`
	Allocated []*resourceapi.ResourceClaim   `json:"allocated"`
}

type answer struct {
	Results [][]resourceapi.DeviceRequestAllocationResult `json:"results"`
	Error   string                                        `json:"error,omitempty"`
}

// Features that are on by default in 1.37.
var features = structured.Features{
	AdminAccess:             true,
	ConsumableCapacity:      true,
	DeviceBindingAndStatus:  true,
	DeviceTaints:            true,
	FractionalCapacityRange: true,
	PartitionableDevices:    true,
	PrioritizedList:         true,
}

// A search may take exponential time; kube-scheduler gives up after 10 seconds.
const timeout = time.Second

type classLister []*resourceapi.DeviceClass

func (classes classLister) List() ([]*resourceapi.DeviceClass, error) {
	return classes, nil
}

func (classes classLister) Get(name string) (*resourceapi.DeviceClass, error) {
	for _, class := range classes {
		if class.Name == name {
			return class, nil
		}
	}
	return nil, fmt.Errorf("no class %s", name)
}

// taint adds the taints of the rules, as the tracker of kube-scheduler does.
func taint(slices []*resourceapi.ResourceSlice, rules []*resourceapi.DeviceTaintRule) {
	for _, slice := range slices {
		for i := range slice.Spec.Devices {
			device := &slice.Spec.Devices[i]
			for _, rule := range rules {
				selector := rule.Spec.DeviceSelector
				if selector != nil &&
					(selector.Driver != nil && *selector.Driver != slice.Spec.Driver ||
						selector.Pool != nil && *selector.Pool != slice.Spec.Pool.Name ||
						selector.Device != nil && *selector.Device != device.Name) {
					continue
				}
				device.Taints = append(device.Taints, rule.Spec.Taint)
			}
		}
	}
}

// allocatedState sums up the allocations, as the plug-in DynamicResources does.
func allocatedState(claims []*resourceapi.ResourceClaim) structured.AllocatedState {
	state := structured.AllocatedState{
		AllocatedDevices:         sets.New[structured.DeviceID](),
		AllocatedSharedDeviceIDs: sets.New[structured.SharedDeviceID](),
		AggregatedCapacity:       structured.NewConsumedCapacityCollection(),
	}
	for _, claim := range claims {
		for _, result := range claim.Status.Allocation.Devices.Results {
			if result.AdminAccess != nil && *result.AdminAccess {
				continue
			}
			id := structured.MakeDeviceID(result.Driver, result.Pool, result.Device)
			if result.ShareID == nil {
				state.AllocatedDevices.Insert(id)
				continue
			}
			state.AllocatedSharedDeviceIDs.Insert(structured.MakeSharedDeviceID(id, result.ShareID))
			if result.ConsumedCapacity != nil {
				state.AggregatedCapacity.Insert(structured.NewDeviceConsumedCapacity(id, result.ConsumedCapacity))
			}
		}
	}
	return state
}

func answers(ctx context.Context, cluster *cluster, cache *cel.Cache) (map[string]answer, error) {
	taint(cluster.Slices, cluster.Rules)
	allocator, err := structured.NewAllocator(ctx, features, allocatedState(cluster.Allocated),
		classLister(cluster.Classes), cluster.Slices, cache)
	if err != nil {
		return nil, err
	}
	result := make(map[string]answer)
	for _, node := range cluster.Nodes {
		limited, cancel := context.WithTimeout(ctx, timeout)
		allocations, err := allocator.Allocate(limited, node, cluster.Claims)
		cancel()
		one := answer{}
		if err != nil {
			one.Error = err.Error()
		}
		if len(allocations) == len(cluster.Claims) {
			one.Results = make([][]resourceapi.DeviceRequestAllocationResult, 0, len(allocations))
			for _, allocation := range allocations {
				one.Results = append(one.Results, allocation.Devices.Results)
			}
		}
		result[node.Name] = one
	}
	return result, nil
}

func main() {
	ctx := context.Background()
	cache := cel.NewCache(1000, cel.Features{EnableConsumableCapacity: true})
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 64<<20)
	encoder := json.NewEncoder(os.Stdout)
	for lines.Scan() {
		var cluster cluster
		err := json.Unmarshal(lines.Bytes(), &cluster)
		var result map[string]answer
		if err == nil {
			result, err = answers(ctx, &cluster, cache)
		}
		if err == nil {
			err = encoder.Encode(result)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	if err := lines.Err(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
