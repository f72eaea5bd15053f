// Command cdi-inject FOLDER CONFIG [DEVICE ...] adds CDI devices to an OCI specification as containerd
// and CRI-O do, by the same library: those of the kubelet's field, named here, and those of annotations.
package main

import (
	"encoding/json"
	"fmt"
	"os"

	oci "github.com/opencontainers/runtime-spec/specs-go"
	"tags.cncf.io/container-device-interface/pkg/cdi"
)

func main() {
	if err := inject(os.Args[1], os.Args[2], os.Args[3:]); err != nil {
		fmt.Fprintln(os.Stderr, "cdi-inject:", err)
		os.Exit(1)
	}
}

func inject(folder, config string, devices []string) error {
	text, err := os.ReadFile(config)
	if err != nil {
		return err
	}
	var spec oci.Spec
	if err := json.Unmarshal(text, &spec); err != nil {
		return err
	}
	_, annotated, err := cdi.ParseAnnotations(spec.Annotations)
	if err != nil {
		return err
	}
	cache, err := cdi.NewCache(cdi.WithSpecDirs(folder), cdi.WithAutoRefresh(false))
	if err != nil {
		return err
	}
	if _, err := cache.InjectDevices(&spec, append(devices, annotated...)...); err != nil {
		return err
	}
	text, err = json.Marshal(spec)
	if err != nil {
		return err
	}
	return os.WriteFile(config, text, 0o644)
}
