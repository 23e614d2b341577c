// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package enforce

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/policy"
)

// The rules that log are as nft prints them. nft loads its own listing, and afterwards the Enforcer finds
// nothing to change. Without the choice, the next Load removes them.
func TestGoldenLog(t *testing.T) {
	_, fw := open(t)
	e := New(fw, Options{Log: &Log{Group: 7, PerSecond: 10}})
	p := policy.Compile(everyForm(t))
	load(t, e, p)
	var rules []string
	all := nftTool(t, "list", "ruleset")
	for line := range strings.Lines(all) {
		if strings.Contains(line, " log ") {
			rules = append(rules, strings.TrimSpace(line)+"\n")
		}
	}
	compareGolden(t, "log.golden", strings.Join(rules, ""))
	saved := filepath.Join(t.TempDir(), "saved.nft")
	must(t, os.WriteFile(saved, []byte(all), 0o600))
	nftTool(t, "flush", "ruleset")
	nftTool(t, "-f", saved)
	same(t, New(fw, Options{Log: &Log{Group: 7, PerSecond: 10}}), p)
	e = New(fw, Options{})
	load(t, e, p)
	same(t, e, p)
	if got := nftTool(t, "list", "ruleset"); strings.Contains(got, " log ") {
		t.Errorf("without the choice there is\n%s", got)
	}
}

// Names of policies and pods may be longer than a prefix.
func TestLongPrefix(t *testing.T) {
	_, fw := open(t)
	e := New(fw, Options{Log: &Log{Group: 65535, PerSecond: 1}})
	p := policy.Compile(shop(t, fmt.Sprintf("shop/%0253d", 1)+` {"podSelector":{}}`))
	load(t, e, p)
	same(t, e, p)
	nftTool(t, "list", "ruleset")
}

// A packet that a policy drops arrives at the group, with the names of the policy and of the pod, and not
// more often than the limit per second. A packet that passes does not.
func TestLog(t *testing.T) {
	p := newPair(t, Options{Log: &Log{Group: 7, PerSecond: 3}})
	p.serve("[::]:80")
	p.load(onB + fromA80 + "]}")
	conn := p.subscribe(7)
	if !p.answers(p.client, "10.1.1.2:80", true) {
		t.Fatal("port 80 does not answer")
	}
	began := time.Now()
	for range 20 {
		must(t, p.client.Do(func() error { return sendUDP("10.1.1.2:9") }))
	}
	most := 3 + int(3*time.Since(began).Seconds()) + 1
	got := logs(t, conn)
	if len(got) == 0 || len(got) > most {
		t.Errorf("%d of 20 packets were logged, want at most 3 in a second, here %d", len(got), most)
	}
	for _, l := range got {
		want := logEntry{"patchbay: shop/b is isolated, ingress, by shop/b", netip.MustParseAddr("10.1.1.1"), netip.MustParseAddr("10.1.1.2"), unix.IPPROTO_UDP}
		if l != want {
			t.Errorf("got %+v, want %+v", l, want)
		}
	}
	p.load(`guard {"tier":"Admin","priority":1,"subject":{"namespaces":{}},"ingress":[{"action":"Deny","from":[{"namespaces":{}}]}]}`)
	must(t, p.client.Do(func() error { return sendUDP("[fd01::1:2]:9") }))
	got = logs(t, conn)
	if want := (logEntry{"patchbay: guard ingress[0]", netip.MustParseAddr("fd01::1:1"), netip.MustParseAddr("fd01::1:2"), unix.IPPROTO_UDP}); len(got) != 1 || got[0] != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

// logEntry is what a test looks at in a packet that was logged.
type logEntry struct {
	prefix   string
	from, to netip.Addr
	protocol uint8
}

// These are numbers of include/uapi/linux/netfilter/nfnetlink_log.h.
const (
	msgPacket = 0
	msgConfig = 1

	cfgCmd       = 1
	cfgMode      = 2
	cfgCmdBind   = 1
	copyPacket   = 2
	attrPayload  = 9
	attrPrefix   = 10
	maxCopy      = 128
	cfgTimeout   = 4
	logWait      = 500 * time.Millisecond
	logSubsystem = unix.NFNL_SUBSYS_ULOG << 8
)

// subscribe listens to a group on the node.
func (p *pair) subscribe(group uint16) (conn *netlink.Conn) {
	must(p.t, p.node.Do(func() (err error) {
		if conn, err = netlink.Dial(unix.NETLINK_NETFILTER, nil); err != nil {
			return err
		}
		mode := append(binary.BigEndian.AppendUint32(nil, maxCopy), copyPacket, 0)
		for _, a := range []netlink.Attribute{{Type: cfgCmd, Data: []byte{cfgCmdBind}}, {Type: cfgMode, Data: mode}, {Type: cfgTimeout, Data: []byte{0, 0, 0, 1}}} {
			data, err := netlink.MarshalAttributes([]netlink.Attribute{a})
			if err != nil {
				return err
			}
			head := append([]byte{unix.AF_UNSPEC, unix.NFNETLINK_V0}, binary.BigEndian.AppendUint16(nil, group)...)
			if _, err := conn.Execute(netlink.Message{
				Header: netlink.Header{Type: logSubsystem | msgConfig, Flags: netlink.Request | netlink.Acknowledge}, Data: append(head, data...),
			}); err != nil {
				return err
			}
		}
		return nil
	}))
	p.t.Cleanup(func() { must(p.t, conn.Close()) })
	return conn
}

// logs returns the packets that arrive, until none came for a while. The kernel collects them for 10 ms
// (cfgTimeout).
func logs(t *testing.T, conn *netlink.Conn) (out []logEntry) {
	for {
		must(t, conn.SetReadDeadline(time.Now().Add(logWait)))
		msgs, err := conn.Receive()
		if err != nil {
			return out
		}
		for _, m := range msgs {
			if m.Header.Type == logSubsystem|msgPacket {
				out = append(out, decodeLog(t, m.Data[4:]))
			}
		}
	}
}

func decodeLog(t *testing.T, b []byte) (e logEntry) {
	attrs, err := netlink.UnmarshalAttributes(b)
	must(t, err)
	for _, a := range attrs {
		switch a.Type {
		case attrPrefix:
			e.prefix = unix.ByteSliceToString(a.Data)
		case attrPayload:
			if d := a.Data; d[0]>>4 == 4 {
				e.from, e.to, e.protocol = netip.AddrFrom4([4]byte(d[12:])), netip.AddrFrom4([4]byte(d[16:])), d[9]
			} else {
				e.from, e.to, e.protocol = netip.AddrFrom16([16]byte(d[8:])), netip.AddrFrom16([16]byte(d[24:])), d[6]
			}
		}
	}
	return e
}

func sendUDP(to string) error {
	conn, err := net.Dial("udp", to)
	if err != nil {
		return err
	}
	_, err = conn.Write([]byte("x"))
	return errors.Join(err, conn.Close())
}
