// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package handover lets a process that stays run the calls of plugin processes. To start Go's runtime
// takes half of the CPU time of a short call. So a plugin process asks for a server before its
// runtime starts (entry_linux_amd64.s). Without a server, or if the server refuses, Go starts as in any
// other program, and the plugin process does the work itself.
//
// A plugin process connects to the socket at Path, which only root can write to. It sends one packet:
// its name, its environment and its standard input. It passes no descriptor: a runtime waits until the
// last copy of its pipes is closed, and so would wait for a server that hangs. The server answers with
// packets:
//
//   - "T": the server takes the call. If this does not come within a second, the plugin process shuts
//     the connection down for the server's packets. The kernel does this under the lock under which it
//     queues packets. So the server's "T" either arrived before, or cannot be sent. Only one process runs a
//     call, even if the server hangs. If "T" arrived just before, no answer can come any more: the process
//     waits until the server has closed the connection, and goes on as if the server had died.
//   - the exit status, the length of what goes to standard error, this text, and the output. The plugin
//     process writes both, sends "A", and exits. If no "A" comes, the runtime does not have the result, and
//     the server undoes an ADD. If the server has died before "A", the answer counts.
//
// If the server closes the connection without "T", it refuses: the plugin process runs the call. If the
// connection ends after "T", the server has died in the call (Lost).
package handover

// Argument is the only argument of a program that is the server (Serve).
const Argument = "__resident"

// Path is the server's socket.
const Path = "/run/patchbay/plugins.sock"

// These are the limits of a call. A plugin process runs a call with a longer input itself.
const (
	maxInput  = 64 << 10
	maxStderr = 64 << 10
	maxOutput = 1 << 20
)

// A request begins with two numbers in the machine's byte order: the bytes of name and environment, and
// the bytes of standard input. Each string ends with a zero byte, as in the memory of the process.
const headerSize = 16

// An answer begins with two numbers of four bytes: the exit status, and the bytes for standard error.
const answerSize = 8

// These are the packets of one byte.
const (
	accepted = 'T'
	written  = 'A'
)
