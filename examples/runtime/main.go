// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Runtime is an example of a container runtime. It runs a command in a network namespace of its own, on the networks
// that NETWORKS names, or on the default network. CNI_PATH and NETCONFPATH are cnitool's:
//
//	NETWORKS="front storage" runtime ip address
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/patchbay-net/patchbay/chain"
	"github.com/patchbay-net/patchbay/netns"
	"github.com/patchbay-net/patchbay/spec"
)

func main() {
	if err := run(context.Background(), strings.Fields(os.Getenv("NETWORKS")), os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "runtime:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, names, command []string) (err error) {
	rt := chain.New(chain.WithPath(filepath.SplitList(os.Getenv("CNI_PATH"))...), chain.WithConfDir(os.Getenv("NETCONFPATH")))
	if err := rt.Status(ctx); errors.Is(err, spec.CodeNotAvailable) {
		return fmt.Errorf("the network is not ready: %w", err)
	}
	id := fmt.Sprint("example-", os.Getpid())
	c := chain.Container{ID: id, NetNS: "/run/netns/" + id}
	var networks []chain.Network
	for _, name := range names {
		networks = append(networks, chain.Network{Name: name})
	}
	if err := netns.Create(c.NetNS); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, rt.Detach(ctx, c, networks...), netns.Delete(c.NetNS)) }()
	results, err := rt.Attach(ctx, c, networks...)
	if err != nil {
		return err
	}
	for _, ip := range spec.Merge(results...).IPsOf("eth0") {
		fmt.Println("address", ip.Address)
	}
	ns, err := netns.Open(c.NetNS)
	if err != nil {
		return err
	}
	defer ns.Close() //nolint:errcheck // the process ends
	return ns.Do(func() error {
		cmd := exec.CommandContext(ctx, command[0], command[1:]...)
		cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
		return cmd.Run()
	})
}
