//! Who is at the other end of a connection, and in whose name a request comes: as the kernel says by the socket, and by a token
//! over the network.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use hyper::Request as HttpRequest;
use hyper::body::Incoming;
use hyper::header::AUTHORIZATION;
use tokio::sync::watch;

use super::error::ApiError;
use super::query::Values;
use super::rates::Who;
use super::routes::{Right, Route};
use super::server::Context;
use super::tokens::{self, Bearer, Held};
use super::wire::FOR_USER;
use crate::reconcile::Caller;

/// An IPv4 address is the same one by either family.
pub(super) fn plain(address: SocketAddr) -> IpAddr {
    address.ip().to_canonical()
}

/// Who is at the other end of a connection.
#[derive(Debug, Clone)]
pub(super) enum Peer {
    Local(Caller),
    Remote(IpAddr),
}

impl Peer {
    pub(super) fn who(&self) -> Who {
        match self {
            Peer::Local(caller) => Who::User(caller.uid),
            Peer::Remote(address) => Who::Address(network_of(*address)),
        }
    }
}

/// Whoever has one address of version 6 has as many as there are in its network of 64 bits.
fn network_of(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(_) => address,
        IpAddr::V6(long) => Ipv6Addr::from(u128::from(long) & !u128::from(u64::MAX)).into(),
    }
}

/// Who asks, once it is known that they may ask for this at all.
pub(super) async fn asker(
    request: &HttpRequest<Incoming>,
    context: &Context,
    peer: &Peer,
    route: &Route,
    shown: &watch::Sender<Option<Held>>,
) -> Result<(Caller, Option<Held>), ApiError> {
    match peer {
        Peer::Local(peer) => {
            // Root is the machine itself; the mount asks as root, for those who use it.
            if peer.uid != 0 {
                context.rates.take(Who::User(peer.uid))?;
            }
            let caller = in_whose_place(request, peer).await?;
            match route.may {
                Right::Admin | Right::Metrics if caller.uid != 0 => Err(ApiError::NotRoot),
                _ => Ok((caller, None)),
            }
        }
        Peer::Remote(address) if route.may == Right::Anyone => {
            context.rates.take(peer.who())?;
            Ok((Caller::nobody(), None))
        }
        Peer::Remote(_) => {
            let bearer = match bearer(request, context).await {
                Ok(bearer) => bearer,
                Err(error) => {
                    // Whoever guesses is slowed down.
                    context.rates.take(peer.who())?;
                    return Err(error);
                }
            };
            context.rates.take(Who::User(bearer.caller.uid))?;
            if route.may == Right::Local {
                let message = "this is for users of this machine, by the daemon's socket; a token is not enough";
                return Err(ApiError::Forbidden(message.to_owned()));
            }
            if !bearer.allows(route.may) {
                let message = format!("this token has not the scope {}, which this takes", route.may.name());
                return Err(ApiError::Forbidden(message));
            }
            shown.send_replace(Some(bearer.held.clone()));
            Ok((bearer.caller, Some(bearer.held)))
        }
    }
}

async fn bearer(request: &HttpRequest<Incoming>, context: &Context) -> Result<Bearer, ApiError> {
    if request.headers().contains_key(FOR_USER) {
        return Err(ApiError::Forbidden("a token is of one user; nobody else can be asked for".to_owned()));
    }
    let missing = || ApiError::Unauthorized("this takes a token, as `Authorization: Bearer TOKEN`".to_owned());
    let header = request.headers().get(AUTHORIZATION).ok_or_else(missing)?;
    let text = tokens::of_header(header.as_bytes()).ok_or_else(missing)?.to_owned();
    let tokens = context.tokens.clone();
    let looked = tokio::task::spawn_blocking(move || tokens.bearer(&text, crate::sys::now())).await;
    looked.map_err(|_| ApiError::Ending)?
}

/// A token may be for some workspaces only.
pub(super) fn check_reach(caller: &Caller, route: &Route, places: &[String], query: &Values) -> Result<(), ApiError> {
    if caller.within.is_none() {
        return Ok(());
    }
    if matches!(route.may, Right::Admin | Right::Metrics) && !route.places().any(|name| name == "workspace") {
        let message = "this is about the whole machine, and this token is for some workspaces only";
        return Err(ApiError::Forbidden(message.to_owned()));
    }
    let in_path = route.places().zip(places).filter(|(name, _)| *name == "workspace").map(|(_, value)| value.as_str());
    match in_path.chain(query.text("workspace")).find(|workspace| !caller.reaches(workspace)) {
        Some(workspace) => Err(ApiError::Forbidden(format!("this token does not reach workspace {workspace}"))),
        None => Ok(()),
    }
}

/// Names of users may be asked for over the network.
pub(super) async fn caller_of(uid: u32) -> Caller {
    if uid == 0 {
        return Caller::root();
    }
    let looked = tokio::task::spawn_blocking(move || Caller::of(uid)).await;
    looked.unwrap_or_else(|_| Caller::named(uid, format!("user {uid}")))
}

/// Root may ask for somebody else: the mount does, for whoever writes to it.
async fn in_whose_place<B>(request: &HttpRequest<B>, peer: &Caller) -> Result<Caller, ApiError> {
    let Some(uid) = request.headers().get(FOR_USER) else { return Ok(peer.clone()) };
    let uid = uid.to_str().ok().and_then(|uid| uid.parse().ok());
    let uid: u32 = uid.ok_or_else(|| ApiError::Bad(format!("{FOR_USER} is no number of a user")))?;
    match peer.uid {
        0 => Ok(caller_of(uid).await),
        own if own == uid => Ok(peer.clone()),
        _ => Err(ApiError::Forbidden("only root may ask for somebody else".to_owned())),
    }
}
