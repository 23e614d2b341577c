// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package netavark

import (
	"fmt"
	"strings"
	"testing"
)

// web is a container with a server.
const web = " " + image + " httpd -f -p 80 -h /etc"

// fetched is how the host asks for the page of a server.
func fetched(at string) string { return "wget -T 5 -q -O - http://" + at + "/hostname" }

// TestRootful follows the containers of a machine on one CNI network.
func TestRootful(t *testing.T) {
	l := newLab(t)
	l.sh("patchbay network create --subnet 10.92.0.0/24 --subnet fd92::/64 pods")
	creates(l)
	for _, part := range []struct {
		name string
		do   func(*lab)
	}{
		{"run", runs}, {"fixed", fixes}, {"networks", joinsSeveral}, {"connect", connects}, {"reload", reloads}, {"restart", restarts},
		{"kill", kills}, {"share", shares}, {"pod", inPod}, {"api", asks}, {"separate", lacksPlugins}, {"reboot", reboots},
	} {
		t.Run(part.name, func(t *testing.T) {
			outer := l.T
			l.T = t
			defer func() { l.T = outer }()
			part.do(l)
			l.nothing()
		})
	}
	l.sh("podman network rm mine pods && patchbay network rm pods")
	l.lacks("ip -br link", "pb1")
}

func creates(l *lab) {
	l.has("podman info --format '{{.Plugins.Network}}'", "patchbay")
	l.sh("podman network create -d patchbay pods")
	l.sh("podman network create -d patchbay -o cni.network=pods mine")
	l.has("podman network inspect mine", `"gateway": "10.92.0.1"`)
	l.has("podman network inspect mine", `"subnet": "fd92::/64"`)
	l.refused("podman network create -d patchbay nosuch", `no network "nosuch"`)
	l.refused("podman network create -d patchbay -o mtu=1400 -o cni.network=pods x", `option "mtu" is not one of this driver`)
	l.refused("podman network create -d patchbay --subnet 10.93.0.0/24 -o cni.network=pods x", "the file of CNI network pods decides about addresses")
	l.refused("podman network create -d patchbay --internal -o cni.network=pods x", "--internal")
	l.sh("podman network create -d patchbay --subnet 10.92.0.0/24 -o cni.network=pods same && podman network rm same")
	l.sh("podman network create own") // podman's own bridge does not take the subnet
	l.lacks("podman network inspect own", "10.92.0")
}

func runs(l *lab) {
	l.sh("podman run -d --name a --network mine -p 8080:80 -p 127.0.0.1:9000:80" + web)
	l.sh("podman run -d --name b --network pods" + web)
	id := l.sh("podman inspect -f '{{.Id}}' a")
	l.eventually(fetched("127.0.0.1:8080"), id[:12])
	l.eventually(fetched("127.0.0.1:9000"), id[:12])
	l.eventually(fetched("10.92.0.1:8080"), id[:12])
	l.has("podman exec --privileged b ping -c 1 -W 2 "+l.sh("podman inspect -f '{{.NetworkSettings.Networks.mine.IPAddress}}' a"), "1 packets received")
	l.has("podman exec --privileged b ping -c 1 -W 2 "+l.sh("podman inspect -f '{{.NetworkSettings.Networks.mine.GlobalIPv6Address}}' a"), "1 packets received")
	l.has("podman network inspect mine", `"ipnet": "10.92.0.`)
	l.has("podman exec a cat /etc/hosts", l.sh("podman inspect -f '{{.NetworkSettings.Networks.mine.IPAddress}}' a"))
	l.has("patchbay ps", "0.0.0.0:8080->80/tcp, 127.0.0.1:9000->80/tcp")
	l.has("patchbay gc --from podman --grace 0s", "nothing is left over")
	l.has("patchbay doctor", "healthy")
	l.sh("patchbay check --all")
	l.refused("podman run --rm --network mine -p 8080:80 "+image, "8080")
}

func fixes(l *lab) {
	l.sh("podman run -d --name a --network mine:ip=10.92.0.77,ip=fd92::77,mac=02:00:00:00:00:77,interface_name=net7" + web)
	l.has("podman exec a ip addr show net7", "10.92.0.77/24")
	l.has("podman exec a ip addr show net7", "fd92::77/64")
	l.has("podman exec a ip addr show net7", "02:00:00:00:00:77")
	l.has("podman inspect -f '{{json .NetworkSettings.Networks.mine}}' a", `"MacAddress":"02:00:00:00:00:77"`)
	l.refused("podman run --rm --network mine --ip 10.92.0.77 "+image, "10.92.0.77")
	l.refused("podman run --rm --network mine --ip 10.9.9.9 "+image, "10.9.9.9")
	l.refused("podman run --rm --network mine:foo=bar "+image, `option "foo"`)
	l.sh("podman restart -t 0 a")
	l.has("podman exec a ip addr show net7", "10.92.0.77/24")
}

// joinsSeveral has a container on a bridge of podman's own, which has names, and on ours. Both publish the port.
func joinsSeveral(l *lab) {
	l.sh("podman run -d --name a --network own --network mine -p 8080:80" + web)
	l.sh("podman run -d --name b --network own" + web)
	l.sh("podman run -d --name c --network mine" + web)
	l.has("podman exec a ip -4 addr", "10.92.0.")
	l.eventually(fetched("127.0.0.1:8080"), l.sh("podman inspect -f '{{.Id}}' a")[:12])
	l.has("podman exec b nslookup a", "Address")
	l.has("podman exec --privileged a ping -c 1 -W 2 "+l.sh("podman inspect -f '{{.NetworkSettings.Networks.mine.IPAddress}}' c"), "1 packets received")
	l.has("podman exec --privileged b ping -c 1 -W 2 "+l.sh("podman inspect -f '{{.NetworkSettings.Networks.mine.IPAddress}}' c"), "1 packets received")
	l.sh("podman rm -f -t 0 a b c")
	l.eventually("ip -br link | grep -v podman", "lo")
}

func connects(l *lab) {
	l.sh("podman run -d --name a --network pods" + web)
	l.sh("podman network connect --ip 10.92.0.99 mine a")
	l.has("podman exec a ip -4 addr", "10.92.0.99")
	l.has("patchbay ps", "eth1")
	l.sh("podman network disconnect mine a")
	l.lacks("podman exec a ip -4 addr", "10.92.0.99")
	l.lacks("patchbay ps", "eth1")
}

// reloads restores the rules after the firewall was emptied. The container keeps its addresses.
func reloads(l *lab) {
	l.sh("podman run -d --name a --network mine -p 8080:80" + web)
	before := l.sh("podman exec a ip -o addr show eth0 | grep -v fe80")
	l.sh("nft flush ruleset; podman network reload a")
	l.eventually(fetched("127.0.0.1:8080"), l.sh("podman inspect -f '{{.Id}}' a")[:12])
	if after := l.sh("podman exec a ip -o addr show eth0 | grep -v fe80"); strings.Fields(after)[3] != strings.Fields(before)[3] {
		l.Errorf("%s\nbefore:\n%s", after, before)
	}
	l.sh("nft flush ruleset; patchbay repair")
	l.eventually(fetched("127.0.0.1:8080"), l.sh("podman inspect -f '{{.Id}}' a")[:12])
}

func restarts(l *lab) {
	l.sh("podman run -d --name a --network mine -p 8080:80" + web)
	for range 3 {
		l.sh("podman restart -t 0 a")
		l.eventually(fetched("127.0.0.1:8080"), l.sh("podman inspect -f '{{.Id}}' a")[:12])
	}
	l.sh("podman stop -t 0 a")
	l.lacks("patchbay ps", "8080")
	l.sh("podman start a")
	l.eventually(fetched("127.0.0.1:8080"), l.sh("podman inspect -f '{{.Id}}' a")[:12])
}

// kills ends what podman relies on with kill -9: the container's process, and the monitor with it.
func kills(l *lab) {
	l.sh("podman run -d --name a --network mine -p 8080:80" + web)
	l.sh("kill -9 $(podman inspect -f '{{.State.Pid}}' a)")
	l.eventually("patchbay ps | grep -c 8080", "0")
	l.sh("podman start a")
	l.eventually(fetched("127.0.0.1:8080"), l.sh("podman inspect -f '{{.Id}}' a")[:12])
	l.sh("conmon=$(podman inspect -f '{{.State.ConmonPid}}' a); pid=$(podman inspect -f '{{.State.Pid}}' a); kill -9 $conmon; kill -9 $pid")
	l.try("podman rm -f -t 0 a")
	l.try("podman rm -f -t 0 a")
}

// shares has a container of another CNI runtime on the network.
func shares(l *lab) {
	l.sh("podman run -d --name a --network mine" + web)
	l.sh("ip netns add other; patchbay add pods other")
	l.has("patchbay ps", "other")
	l.eventually("ip netns exec other "+fetched(l.sh("podman inspect -f '{{.NetworkSettings.Networks.mine.IPAddress}}' a")), l.sh("podman inspect -f '{{.Id}}' a")[:12])
	l.has("patchbay gc --from podman --grace 0s", "nothing is left over") // the list lacks the other one, which lives
	l.sh("patchbay del pods other; ip netns del other")
}

func inPod(l *lab) {
	l.sh("podman pod create --name p --network mine -p 8080:80; podman run -d --pod p --name a" + web)
	l.has("patchbay ps", "0.0.0.0:8080->80/tcp")
	l.eventually(fetched("127.0.0.1:8080"), "p")
	l.sh("podman pod rm -f -t 0 p")
}

// asks uses Docker's API, as Compose does. podman passes no options from it, but labels.
func asks(l *lab) {
	l.sh("podman system service -t 0 tcp:127.0.0.1:8888 >/dev/null 2>&1 & sleep 1")
	ask := func(path, body string) string {
		return fmt.Sprintf("printf 'POST /v1.41/%s HTTP/1.0\\r\\nContent-Type: application/json\\r\\nContent-Length: %d\\r\\n\\r\\n%%s' '%s' | nc 127.0.0.1 8888", path, len(body), body)
	}
	l.has(ask("networks/create", `{"Name":"composed","Driver":"patchbay","Labels":{"cni.network":"pods"},"IPAM":{"Config":[{"Subnet":"10.92.0.0/24","Gateway":"10.92.0.1"}]}}`), `"Id"`)
	l.has(ask("networks/create", `{"Name":"x","Driver":"patchbay","Labels":{"cni.network":"pods"},"Options":{"mtu":"1400"}}`), "option \\\"mtu\\\" is not one")
	l.has(ask("containers/create?name=a", `{"Image":"`+image+`","Cmd":["httpd","-f","-p","80","-h","/etc"],"HostConfig":{"NetworkMode":"composed","PortBindings":{"80/tcp":[{"HostPort":"8080"}]}},`+
		`"NetworkingConfig":{"EndpointsConfig":{"composed":{"IPAMConfig":{"IPv4Address":"10.92.0.50"},"MacAddress":"02:00:00:00:00:50"}}}}`), `"Id"`)
	l.has(ask("containers/a/start", ""), "204")
	l.eventually(fetched("127.0.0.1:8080"), l.sh("podman inspect -f '{{.Id}}' a")[:12])
	l.has("patchbay ps", "10.92.0.50")
	l.sh("podman rm -f -t 0 a; podman network update --dns-add 9.9.9.9 composed")
	l.has("podman run --rm --network composed "+image+" cat /etc/resolv.conf", "9.9.9.9")
	l.sh("podman network rm composed; kill $!")
}

// lacksPlugins has a network without portmap whose plugins declare no capability.
func lacksPlugins(l *lab) {
	l.sh(`echo '{"cniVersion":"1.0.0","name":"bare","plugins":[{"type":"bridge","bridge":"bare0","isGateway":true,"ipMasq":true,"ipam":{"type":"host-local",` +
		`"ranges":[[{"subnet":"10.95.0.0/24"}],[{"subnet":"fd95::/64"}]]}}]}' >/etc/cni/net.d/bare.conflist`)
	l.sh("podman network create -d patchbay bare; podman run -d --name a --network bare -p 8080:80" + web)
	l.eventually(fetched("127.0.0.1:8080"), l.sh("podman inspect -f '{{.Id}}' a")[:12])
	l.sh("podman network reload a")
	l.has("podman exec a ip -o addr show eth0", "10.95.0.2/24")
	l.has("podman exec a ip -o addr show eth0", "fd95::2/64")
	l.eventually(fetched("127.0.0.1:8080"), l.sh("podman inspect -f '{{.Id}}' a")[:12])
	l.sh("podman rm -f -t 0 a; podman network rm bare; patchbay network rm --force bare")
}

// reboots ends everything without a teardown, and empties what is gone after a boot. The addresses of that time do not
// stay reserved.
func reboots(l *lab) {
	l.sh("podman run -d --name a --network mine -p 8080:80" + web)
	l.sh("podman run -d --name b --network mine" + web)
	l.sh("killall -9 conmon httpd; sleep 0.2; umount /run/netns/*; rm -rf /run/netns/*; sleep 0.3; ip link del pb1")
	l.sh("rm -rf /run/containers /run/crun /run/libpod /run/patchbay /dev/shm/libpod*; nft flush ruleset")
	l.has("patchbay gc --grace 0s", "would be removed")
	l.sh("podman start a")
	id := l.sh("podman inspect -f '{{.Id}}' a")[:12]
	l.eventually(fetched("127.0.0.1:8080"), id)
	l.lacks("patchbay ps | grep -w a", "gone")
	l.sh("podman rm -f -t 0 a b") // podman has forgotten that b was attached
	l.sh("patchbay gc --apply --grace 0s")
}

// TestRootless runs podman as an ordinary user. The user's networks are in a namespace of the user's own, with pasta to the
// host, and podman publishes the ports.
func TestRootless(t *testing.T) {
	l := newLab(t)
	l.sh("patchbay network create --subnet 10.92.0.0/24 pods")
	l.sh("mkdir -p /home/user/.config/containers; cp /etc/containers/containers.conf /home/user/.config/containers/")
	l.sh("printf '[storage]\\ndriver=\"vfs\"\\n' >/home/user/.config/containers/storage.conf; chown -R 1000:1000 /home/user; mount --make-shared /")
	podman := func(args string) string {
		return "su -s /usr/bin/sh user -c 'cd; HOME=/home/user XDG_RUNTIME_DIR=/run/user/1000 podman " + args + "'"
	}
	ours := func(args string) string {
		return podman("unshare --rootless-netns env PATCHBAY_CNI_DIR=/run/patchbay/cni patchbay " + args)
	}
	l.sh("patchbay network create -d ptp --subnet 10.93.0.0/24 line")
	l.sh(`echo '{"cniVersion":"1.0.0","name":"lan","plugins":[{"type":"macvlan","master":"eth0","ipam":{"type":"host-local","subnet":"10.94.0.0/24"}}]}' >/etc/cni/net.d/lan.conflist`)
	l.sh(podman("load -q -i /tmp/busybox.tar"))
	l.sh(podman("network create -d patchbay pods"))
	l.sh(podman("run -d --name a --network pods -p 8080:80" + web))
	l.sh(podman("run -d --name b --network pods:ip=10.92.0.77" + web))
	l.has(podman("exec a ip -4 addr show eth0"), "10.92.0.")
	l.has(podman("exec --privileged a ping -c 1 -W 2 10.92.0.77"), "1 packets received")
	l.eventually(fetched("127.0.0.1:8080"), l.sh(podman("inspect -f \"{{.Id}}\" a"))[:12])
	l.has(ours("ps"), "10.92.0.77")
	l.has(ours("gc --grace 0s"), "nothing is left over")
	l.sh(podman("restart -t 0 b"))
	l.has(podman("exec b ip -4 addr show eth0"), "10.92.0.77")
	l.sh(podman("rm -f -t 0 a"))
	l.lacks(ours("ps"), "8080")
	l.sh(podman("rm -f -t 0 b"))
	l.sh(podman("network create -d patchbay line"))
	l.sh(podman("run -d --name c --network line -p 8080:80" + web))
	l.eventually(fetched("127.0.0.1:8080"), l.sh(podman("inspect -f \"{{.Id}}\" c"))[:12])
	l.sh(podman("network create -d patchbay lan")) // its parent is the host's, and not in the user's network
	l.refused(podman("run --rm --network lan "+image), "failed to lookup master")
	l.sh(podman("rm -f -t 0 c"))
	l.lacks("ls /var/lib/cni /run/patchbay 2>/dev/null; true", "networks") // nothing of it is the host's
	l.refused(podman("network create -d patchbay nosuch"), "no network")
}
