// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Command agnhost is Kubernetes' program of that name, /agnhost.real, except that it opens SCTP
// associations by itself on kernels without SCTP sockets.
package main

import (
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/patchbay-net/patchbay/test/e2e/sctp"
)

const original = "/agnhost.real"

func main() {
	if len(os.Args) > 1 && !sctp.InKernel() {
		switch os.Args[1] {
		case "porter":
			porter()
		case "connect":
			connect(os.Args[2:])
		}
	}
	fmt.Fprintln(os.Stderr, syscall.Exec(original, append([]string{"agnhost"}, os.Args[1:]...), os.Environ()))
	os.Exit(1)
}

// porter serves the port of SERVE_SCTP_PORT_<port>. It returns if there is none.
func porter() {
	for _, v := range os.Environ() {
		name, ok := strings.CutPrefix(v, "SERVE_SCTP_PORT_")
		if !ok {
			continue
		}
		name, _, _ = strings.Cut(name, "=")
		port, err := strconv.ParseUint(name, 10, 16)
		if err == nil {
			err = sctp.Serve(uint16(port))
		}
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// connect connects over SCTP, with the words of agnhost. It returns if the protocol is another one.
func connect(args []string) {
	var server string
	var flags []string
	for _, arg := range args { // flags may follow the server
		if strings.HasPrefix(arg, "-") {
			flags = append(flags, arg)
		} else {
			server = arg
		}
	}
	set := flag.NewFlagSet("connect", flag.ContinueOnError)
	timeout := set.Duration("timeout", time.Minute, "")
	protocol := set.String("protocol", "tcp", "")
	if set.Parse(flags) != nil || *protocol != "sctp" {
		return
	}
	to, err := netip.ParseAddrPort(server)
	if err != nil {
		fmt.Fprintln(os.Stderr, "DNS:", err)
		os.Exit(1)
	}
	err = sctp.Connect(to, *timeout)
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		fmt.Fprintln(os.Stderr, "TIMEOUT")
		os.Exit(1)
	case err != nil:
		fmt.Fprintln(os.Stderr, "OTHER:", err)
		os.Exit(1)
	}
	os.Exit(0)
}
