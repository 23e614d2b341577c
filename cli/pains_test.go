// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/paths"
)

// TestPains runs one script for each pain of the reference's users
// (docs/pains.md).
func TestPains(t *testing.T) { runScripts(t, "testdata/pains") }

// toolPrograms returns the programs that replace ip and nc in the scripts. So the machine need
// not have these.
func toolPrograms() map[string]func() {
	tools := map[string]func([]string) error{"link": linkTool, "inns": innsTool, "serve": serveTool, "ask": askTool, "say": sayTool, "leaves": leavesTool}
	programs := make(map[string]func(), len(tools))
	for name, tool := range tools {
		programs[name] = func() {
			if err := tool(os.Args[1:]); err != nil {
				fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
				os.Exit(1)
			}
		}
	}
	return programs
}

// linkTool is `link add|del|has NAME`. The link is one end of a veth pair that is up.
func linkTool(args []string) error {
	name := args[1]
	if args[0] == "add" {
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.Flags = name, net.FlagUp
		pair := &netlink.Veth{LinkAttrs: attrs, PeerName: name + "p"}
		if err := netlink.LinkAdd(pair); err != nil {
			return err
		}
		peer, err := netlink.LinkByName(pair.PeerName)
		return errors.Join(err, netlink.LinkSetUp(peer), netlink.LinkSetUp(pair))
	}
	link, err := netlink.LinkByName(name)
	if err == nil && args[0] == "del" {
		err = netlink.LinkDel(link)
	}
	return err
}

// innsTool is `inns NETNS COMMAND...`. It executes a command in a namespace.
func innsTool(args []string) error {
	runtime.LockOSThread()
	f, err := os.Open(filepath.Join(paths.Default().NetNS, args[0]))
	if err != nil {
		return err
	}
	if err := unix.Setns(int(f.Fd()), unix.CLONE_NEWNET); err != nil {
		return err
	}
	path, err := exec.LookPath(args[1])
	if err != nil {
		return err
	}
	return syscall.Exec(path, args[1:], os.Environ())
}

// serveTool is `serve udp|tcp ADDRESS FILE`. It answers with the sender's address, and creates
// the file when it listens.
func serveTool(args []string) error {
	ready := func() error { return os.WriteFile(args[2], []byte("ready\n"), 0o600) }
	if args[0] == "udp" {
		conn, err := net.ListenPacket("udp", args[1])
		if err != nil {
			return err
		}
		for err = ready(); err == nil; {
			var from net.Addr
			if _, from, err = conn.ReadFrom(make([]byte, 100)); err == nil {
				_, err = conn.WriteTo([]byte(from.String()), from)
			}
		}
		return err
	}
	l, err := net.Listen("tcp", args[1])
	if err != nil {
		return err
	}
	for err = ready(); err == nil; {
		var conn net.Conn
		if conn, err = l.Accept(); err == nil {
			_, err = io.WriteString(conn, conn.RemoteAddr().String())
			err = errors.Join(err, conn.Close())
		}
	}
	return err
}

// askTool is `ask udp|tcp ADDRESS [PORT]`. It prints the answer. PORT is the source port.
func askTool(args []string) error {
	d := net.Dialer{Timeout: time.Minute}
	if len(args) > 2 {
		d.LocalAddr, _ = net.ResolveUDPAddr("udp", ":"+args[2])
	}
	conn, err := d.Dial(args[0], args[1])
	if err != nil {
		return err
	}
	if args[0] == "udp" {
		_, err = io.WriteString(conn, "?")
	}
	answer := make([]byte, 100)
	err = errors.Join(err, conn.SetDeadline(time.Now().Add(time.Minute)))
	n, rerr := conn.Read(answer)
	fmt.Println(string(answer[:n]))
	return errors.Join(err, rerr)
}

// sayTool is `say ADDRESS PORT`. It sends a datagram from a port and does not wait.
func sayTool(args []string) error {
	from, err := net.ResolveUDPAddr("udp", ":"+args[1])
	if err != nil {
		return err
	}
	conn, err := (&net.Dialer{LocalAddr: from}).Dial("udp", args[0])
	if err != nil {
		return err
	}
	_, err = io.WriteString(conn, "?")
	return errors.Join(err, conn.Close())
}
