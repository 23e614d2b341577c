// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Command probe is package probe as a program for containers: built without cgo it runs in
// an empty file system.
//
//	probe serve ADDR          answer on ADDR over TCP and UDP until killed
//	probe who NETWORK ADDR    ask ADDR which address it sees, print the answer
//	probe first FILE FOR TARGET...
//	                          serve on port 8080 and fire at targets ("tcp/10.1.2.3:80"), from the start of the program for
//	                          a time; then write what came back to FILE, and end
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/patchbay-net/patchbay/daemons/test/probe"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "probe:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	switch {
	case len(args) == 2 && args[0] == "serve":
		if _, err := probe.Serve(args[1]); err != nil {
			return err
		}
		select {}
	case len(args) == 3 && args[0] == "who":
		seen, err := probe.Who(args[1], args[2])
		if err == nil {
			fmt.Println(seen)
		}
		return err
	case len(args) > 2 && args[0] == "first":
		return first(args[1], args[2], args[3:])
	}
	return fmt.Errorf("usage: probe serve ADDR | probe who NETWORK ADDR | probe first FILE FOR TARGET...")
}

// interval is the time between two packets to a target.
const interval = 2 * time.Millisecond

func first(file, length string, texts []string) error {
	result := probe.Life{Began: time.Now()}
	s, err := probe.Serve(":8080")
	if err != nil {
		return err
	}
	defer s.Close()
	limit, err := time.ParseDuration(length)
	if err != nil {
		return err
	}
	var targets []probe.Target
	for _, text := range texts {
		t, err := probe.ParseTarget(text)
		if err != nil {
			return err
		}
		targets = append(targets, t)
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	if result.Fired, err = probe.Fire(ctx, interval, nil, targets...); err != nil {
		return err
	}
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return err
	}
	for _, a := range addrs {
		if n, ok := a.(*net.IPNet); ok && n.IP.IsGlobalUnicast() {
			result.Addrs = append(result.Addrs, n.IP.String())
		}
	}
	text, err := json.Marshal(result)
	if err != nil {
		return err
	}
	if err := os.WriteFile(file+".new", text, 0o600); err != nil {
		return err
	}
	return os.Rename(file+".new", file)
}
