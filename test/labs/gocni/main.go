// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Command gocni is containerd's library go-cni as a command of patchbay-conformance runtime: containerd's CRI service and nerdctl
// call plugins through it. It loads the one network as containerd does. The library numbers the interfaces itself, from 0.
//
//	patchbay-conformance runtime -- gocni
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"

	"github.com/containerd/go-cni"
)

// missing is the exit status of an operation that a runtime does not have.
const missing = 77

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: gocni add|del|check|status")
		os.Exit(2)
	}
	if err := run(context.Background(), os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// run does one operation.
func run(ctx context.Context, operation string) error {
	runtime, err := cni.New(cni.WithMinNetworkCount(1), cni.WithInterfacePrefix(strings.TrimRight(os.Getenv("CNI_IFNAME"), "0123456789")),
		cni.WithPluginConfDir(os.Getenv("NETCONFPATH")), cni.WithPluginDir([]string{os.Getenv("CNI_PATH")}))
	if err != nil {
		return err
	}
	if err := runtime.Load(cni.WithDefaultConf); err != nil {
		return err
	}
	id, netns := os.Getenv("CONTAINERID"), os.Getenv("NETNS")
	opts, err := options()
	if err != nil {
		return err
	}
	switch operation {
	case "add":
		result, err := runtime.Setup(ctx, id, netns, opts...)
		if err != nil {
			return err
		}
		return json.NewEncoder(os.Stdout).Encode(result.Raw()[0])
	case "del":
		return runtime.Remove(ctx, id, netns, opts...)
	case "check":
		return runtime.Check(ctx, id, netns, opts...)
	case "status":
		return runtime.Status()
	}
	os.Exit(missing)
	return nil
}

// options are the arguments and capabilities that the suite asks for.
func options() (opts []cni.NamespaceOpts, err error) {
	for pair := range strings.SplitSeq(os.Getenv("CNI_ARGS"), ";") {
		if key, value, ok := strings.Cut(pair, "="); ok {
			opts = append(opts, cni.WithArgs(key, value))
		}
	}
	if text := os.Getenv("CAP_ARGS"); text != "" {
		var capabilities map[string]any
		if err := json.Unmarshal([]byte(text), &capabilities); err != nil {
			return nil, fmt.Errorf("read CAP_ARGS: %w", err)
		}
		for name, value := range capabilities {
			opts = append(opts, cni.WithCapability(name, value))
		}
	}
	return opts, nil
}
