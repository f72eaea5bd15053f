// The parts of a node: Kubernetes' own kubelet, and a container runtime that starts no process.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"google.golang.org/grpc"
	"k8s.io/component-base/cli"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/cri-client/pkg/fake"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

func init() {
	parts["kubelet"] = func() int { return cli.Run(kubelet.NewKubeletCommand(context.Background())) }
	parts["fake-runtime"] = func() int {
		if len(os.Args) != 3 {
			fmt.Fprintln(os.Stderr, "usage: fake-runtime SOCKET RECORD")
			return 2
		}
		fmt.Fprintf(os.Stderr, "fake-runtime: %v\n", serve(os.Args[1], os.Args[2]))
		return 1
	}
}

// A runtime keeps containers in memory, and writes a line of JSON for each that the kubelet creates.
// A container with the command "true" or "false" has ended when it is started, as that program would
// soon; any other runs until it is stopped.
type runtime struct {
	*fake.RemoteRuntime
	lock     sync.Mutex // over all below
	record   *json.Encoder
	commands map[string][]string // by the container's ID
}

// A created is one line of the record.
type created struct {
	Time        time.Time         `json:"time"`
	Namespace   string            `json:"namespace"`
	Pod         string            `json:"pod"`
	UID         string            `json:"uid"`
	Container   string            `json:"container"`
	Attempt     uint32            `json:"attempt"`
	Env         [][2]string       `json:"env"` // names may come twice
	Annotations map[string]string `json:"annotations"`
	CDIDevices  []string          `json:"cdiDevices"`
	Devices     []*cri.Device     `json:"devices"`
	Mounts      []*cri.Mount      `json:"mounts"`
}

// serve answers the kubelet on a unix socket; it returns when it cannot. The record is appended to.
func serve(socket, record string) error {
	file, err := os.OpenFile(record, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	answers := &runtime{
		RemoteRuntime: fake.NewFakeRemoteRuntime(),
		record:        json.NewEncoder(file),
		commands:      map[string][]string{},
	}
	answers.ImageService.SetFakeImageSize(1) // the kubelet takes an image of size 0 for a fault
	answers.RuntimeService.FakeStatus = &cri.RuntimeStatus{Conditions: []*cri.RuntimeCondition{
		{Type: cri.RuntimeReady, Status: true},
		{Type: cri.NetworkReady, Status: true},
	}}
	server := grpc.NewServer()
	cri.RegisterRuntimeServiceServer(server, answers)
	cri.RegisterImageServiceServer(server, answers)
	return server.Serve(listener)
}

func (r *runtime) CreateContainer(
	ctx context.Context, request *cri.CreateContainerRequest,
) (*cri.CreateContainerResponse, error) {
	answer, err := r.RemoteRuntime.CreateContainer(ctx, request)
	if err != nil {
		return nil, err
	}
	pod, config := request.SandboxConfig.Metadata, request.Config
	line := created{
		Time:      time.Now(),
		Namespace: pod.Namespace, Pod: pod.Name, UID: pod.Uid,
		Container: config.Metadata.Name, Attempt: config.Metadata.Attempt,
		Annotations: config.Annotations, Devices: config.Devices, Mounts: config.Mounts,
	}
	for _, each := range config.Envs {
		line.Env = append(line.Env, [2]string{each.Key, string(each.Value)})
	}
	for _, each := range config.CDIDevices {
		line.CDIDevices = append(line.CDIDevices, each.Name)
	}
	// Without it the kubelet removes the files of its working folder for the container's log.
	log := filepath.Join(request.SandboxConfig.LogDirectory, config.LogPath)
	r.RuntimeService.Lock()
	r.RuntimeService.Containers[answer.ContainerId].LogPath = log
	r.RuntimeService.Unlock()
	r.lock.Lock()
	defer r.lock.Unlock()
	r.commands[answer.ContainerId] = config.Command
	return answer, r.record.Encode(line)
}

func (r *runtime) StartContainer(
	ctx context.Context, request *cri.StartContainerRequest,
) (*cri.StartContainerResponse, error) {
	answer, err := r.RemoteRuntime.StartContainer(ctx, request)
	if err != nil {
		return nil, err
	}
	r.lock.Lock()
	command := r.commands[request.ContainerId]
	r.lock.Unlock()
	if len(command) == 1 && (command[0] == "true" || command[0] == "false") {
		service := r.RuntimeService
		service.Lock()
		defer service.Unlock()
		container := service.Containers[request.ContainerId]
		container.State = cri.ContainerState_CONTAINER_EXITED
		container.FinishedAt = time.Now().UnixNano()
		container.Reason = "Completed"
		if command[0] == "false" {
			container.Reason, container.ExitCode = "Error", 1
		}
	}
	return answer, nil
}
