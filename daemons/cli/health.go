// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"fmt"
	"log"
	"net"
	"net/http"
)

// serveHealth serves an agent's metrics and health at the address of --listen.
func serveHealth(address string, agent interface{ Handler() http.Handler }, logger *log.Logger) (stop func(), err error) {
	if address == "" {
		return func() {}, nil
	}
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("serve metrics: %w: name another address with --listen", err)
	}
	server := &http.Server{Handler: agent.Handler(), ReadHeaderTimeout: pollTime, ErrorLog: logger}
	go server.Serve(l)                    //nolint:errcheck // it ends with Close
	return func() { server.Close() }, nil //nolint:errcheck // the process ends
}
